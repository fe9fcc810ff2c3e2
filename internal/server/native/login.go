package native

import (
	"errors"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// login is what a client has proved. It is immutable.
type login struct {
	who    *auth.Principal
	secret string // needed to ask again; never logged
	owner  string // of the producers that it opens: see node.ProducerOwner
}

func newLogin(who *auth.Principal, secret string) *login {
	return &login{who, secret, node.ProducerOwner(who.Name())}
}

// owner returns the identity that owns the producers which this client opens, or "" if clients need no token.
func (s *session) owner() string {
	if l := s.login.Load(); l != nil {
		return l.owner
	}
	return ""
}

// sender is who sends the batches of this client.
func (s *session) sender() node.Sender { return node.Sender{Owner: s.owner(), Payer: s.pays()} }

// pays is who pays for what the client makes the node hold: the first token that it has shown, or its address if it has
// to show none. It does not change while the client has anything but an Auth in the node.
func (s *session) pays() string { return *s.payer.Load() }

// authenticate serves an Auth. A client may send another one, with a new token; one that fails ends the connection.
func (s *session) authenticate(request uint64, m *wire.Auth) {
	s.client.Store(&m.Client)
	if s.srv.opts.Auth != nil {
		who, err := s.prove(m.Token)
		if err == nil && who.GrantCount() == 0 {
			err = errors.New("the token allows nothing")
			s.refused("auth", "", err.Error())
		}
		if err != nil {
			_ = s.fail(wire.TypeAuth, request, netproto.StatusUnproven, "authentication failed")
			s.conn.Close()
			return
		}
		if err := s.admit(who); err != nil {
			s.refused("auth", "", err.Error())
			_ = s.fail(wire.TypeAuth, request, netproto.StatusFull, err.Error())
			s.conn.Close()
			return
		}
		s.login.Store(newLogin(who, m.Token))
		s.beKnown(who)
	}
	_ = s.answer(wire.TypeAuth, request, netproto.StatusOK, wire.Append(nil, new(wire.Outcome)))
}

// admit takes the client's place among those that are known, or says why there is none.
func (s *session) admit(who *auth.Principal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srv.opts.Known == nil || s.gone {
		return nil
	}
	return s.counted.Enter(s.srv.opts.Known, who)
}

// leave gives the places back that the connection has. It has ended.
func (s *session) leave() {
	s.noStranger()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.counted.Leave()
}

// beKnown lifts the limits of strangers.
func (s *session) beKnown(who *auth.Principal) {
	s.mu.Lock()
	if s.phase == unproven {
		s.phase = known
		payer := "token " + who.Name()
		s.payer.Store(&payer)
	}
	s.mu.Unlock()
	s.expiry.Stop()
	s.conn.Trust()
	s.noStranger()
}

// noStranger takes the session out of the strangers, if it is one.
func (s *session) noStranger() {
	if s.stranger != nil {
		s.stranger.Leave()
	}
}

// prove finds the principal for a secret, and may wait for a server. The client is not told why that failed.
func (s *session) prove(secret string) (*auth.Principal, error) {
	if s.stranger != nil {
		s.stranger.Stay(true)
		defer s.stranger.Stay(false)
	}
	who, err := s.srv.opts.Auth.Find(s.ctx, auth.CredentialOf(secret, s.remote, s.tls))
	switch {
	case errors.Is(err, auth.ErrUnknownSecret):
		s.refused("auth", "", err.Error())
	case err != nil:
		s.srv.meter.authFailures.Add(1)
		s.srv.opts.Logger.Debug("refusing a native client: nobody could say what it may do", "client", s.remote, "error", err)
	}
	return who, err
}

// principal returns what the client may do; nil and no error: everything. If the token file was read again, or a
// server's answer has expired, it first asks again. An error means that the client's token is no longer known.
func (s *session) principal() (*auth.Principal, error) {
	if s.srv.opts.Auth == nil {
		return nil, nil
	}
	l := s.login.Load()
	if s.srv.opts.Auth.Current(l.who, time.Now()) {
		return l.who, nil
	}
	who, err := s.prove(l.secret)
	if err != nil {
		return nil, err
	}
	s.login.CompareAndSwap(l, newLogin(who, l.secret)) // else the client has sent a newer one meanwhile
	return who, nil
}

// who returns the name that the client has proved, or "".
func (s *session) who() string {
	if l := s.login.Load(); l != nil {
		return l.who.Name()
	}
	return auth.Certified(s.tls)
}

// created tells the audit what the client has created.
func (s *session) created(names string) {
	if tell := s.srv.opts.Created; tell != nil {
		tell(audit.Entry{Who: s.who(), From: s.remote, What: "native create", Names: names})
	}
}
