package nsq

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq/command"
)

// login is the result of a successful AUTH. It is immutable.
type login struct {
	who    *auth.Principal
	secret string // needed to ask again; never logged
	owner  string // of the producers that it opens: see node.ProducerOwner

	// The subscription that was made with it; empty: none.
	topic, channel string
}

// granted is the last successful check of a publish: the topic, and the principal that may publish to it. It saves
// checks, since producers rarely change their topic. It belongs to the reader.
type granted struct {
	who   *auth.Principal
	topic string
}

// authenticate executes AUTH.
func (c *conn) authenticate(body []byte) *command.Fault {
	if l := c.login.Load(); l != nil {
		return command.NewFault("E_INVALID AUTH already set")
	}
	if c.srv.opts.Auth == nil {
		return command.NewFault("E_AUTH_DISABLED AUTH disabled")
	}
	secret := string(body)
	clear(body) // the read buffer is reused
	who, f := c.prove(secret)
	if f != nil {
		return f
	}
	if who.GrantCount() == 0 {
		return command.NewFault("E_UNAUTHORIZED AUTH no authorizations found")
	}
	if err := c.known.Enter(c.srv.opts.Known, who); err != nil {
		c.refusal("AUTH", who.Name(), "", err.Error())
		return command.Faultf("E_AUTH_FAILED AUTH failed: %v", err)
	}
	c.login.Store(&login{who: who, secret: secret, owner: node.ProducerOwner(who.Name())})
	c.beKnown()
	reply, err := json.Marshal(struct {
		Identity        string `json:"identity"`
		IdentityURL     string `json:"identity_url"`
		PermissionCount int    `json:"permission_count"`
	}{who.Name(), who.URL(), who.GrantCount()})
	if err != nil {
		panic("BUG: the AUTH reply does not encode: " + err.Error())
	}
	c.reply(frameResponse, string(reply))
	return nil
}

// refusal tells the audit that the client was refused. who is the name that it has proved, if any.
func (c *conn) refusal(what, who, names, why string) {
	c.srv.opts.Audit.Refused(audit.Entry{Who: cmp.Or(who, c.certified()), From: c.remote, What: what, Names: names}, why)
}

// changed tells the audit of a change that the client's command brought about.
func (c *conn) changed(what, names string, err error) {
	e := audit.Entry{Who: c.certified(), From: c.remote, What: what, Names: names}
	if l := c.login.Load(); l != nil {
		e.Who = l.who.Name()
	}
	if err != nil {
		e.Result = err.Error()
	}
	c.srv.opts.Audit.Changed(e)
}

// certified returns the name in the client's certificate, or "".
func (c *conn) certified() string { return auth.Certified(c.link.Load().tls) }

// prove finds the principal for the secret, and may wait for a server. The client is not told why that failed.
func (c *conn) prove(secret string) (*auth.Principal, *command.Fault) {
	c.submit()
	c.waiting.Store(true)
	c.stay(true)
	who, err := c.srv.opts.Auth.Find(c.ctx, auth.CredentialOf(secret, c.remote, c.link.Load().tls))
	c.stay(false)
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
	switch {
	case errors.Is(err, auth.ErrUnknownSecret):
		c.refusal("AUTH", "", "", err.Error())
	case err != nil: // the Authority has said so in the log, once
		c.srv.opts.Logger.Debug("refusing an NSQ client: nobody could say what it may do", "client", c.remote, "error", err)
	default:
		return who, nil
	}
	c.srv.counts.authFailures.Add(1)
	return nil, command.NewFault("E_AUTH_FAILED AUTH failed")
}

// currentPrincipal returns the client's principal. If the token file was read again, or a server's answer has expired,
// it first looks the principal up again, which may wait for a server. v is the command's name for the error frame. Only
// the reader calls it.
func (c *conn) currentPrincipal(v string) (*auth.Principal, *command.Fault) {
	l := c.login.Load()
	if l == nil {
		c.srv.counts.authFailures.Add(1)
		c.refusal(v, "", "", "AUTH_FIRST")
		return nil, command.NewFault("E_AUTH_FIRST AUTH required before " + v)
	}
	if c.srv.opts.Auth.Current(l.who, time.Now()) {
		return l.who, nil
	}
	who, f := c.prove(l.secret)
	if f != nil {
		return nil, f
	}
	next := *l
	next.who, next.owner = who, node.ProducerOwner(who.Name())
	c.login.Store(&next)
	return who, nil
}

// owner is that of the producers of this client; "": it has to prove nothing. It has been permitted to publish.
func (c *conn) owner() string {
	if l := c.login.Load(); l != nil {
		return l.owner
	}
	return ""
}

// maker returns the token for which a topic counts that the client makes: see auth.Principal.Maker. It has been
// permitted what makes the topic.
func (c *conn) maker() (string, error) {
	if l := c.login.Load(); l != nil {
		return l.who.Maker(), nil
	}
	return "", nil
}

// mayPublish checks the permission for a PUB, MPUB or DPUB. For a run of them only the first is checked.
func (c *conn) mayPublish(cmd *command.Command) *command.Fault {
	if c.srv.opts.Auth == nil {
		return nil
	}
	who, f := c.currentPrincipal(cmd.Verb.String())
	switch {
	case f != nil:
		return f
	case c.granted.who == who && c.granted.topic == string(cmd.Topic):
		return nil
	case !auth.May(who, auth.Publish, auth.Topic(string(cmd.Topic))):
		c.srv.counts.authFailures.Add(1)
		c.refusal(cmd.Verb.String(), who.Name(), "topic="+string(cmd.Topic), "UNAUTHORIZED")
		return command.Faultf("E_UNAUTHORIZED AUTH failed for %s on %q %q", cmd.Verb, cmd.Topic, "")
	}
	c.granted = granted{who, string(cmd.Topic)}
	return nil
}

// stillGranted reports whether a PUB to the topic is known to be allowed, without asking anybody.
func (c *conn) stillGranted(topic []byte) bool {
	if c.srv.opts.Auth == nil {
		return true
	}
	l := c.login.Load()
	return l != nil && c.granted.who == l.who && c.granted.topic == string(topic) &&
		c.srv.opts.Auth.Current(l.who, time.Now())
}

// maySubscribe checks the permission for a SUB, and notes the subscription in login.
func (c *conn) maySubscribe(topic, channel string) *command.Fault {
	if c.srv.opts.Auth == nil {
		return nil
	}
	who, f := c.currentPrincipal(command.VerbSub.String())
	if f != nil {
		return f
	}
	if !auth.May(who, auth.Subscribe, auth.Channel(topic, channel)) {
		c.srv.counts.authFailures.Add(1)
		c.refusal(command.VerbSub.String(), who.Name(), "topic="+topic+" channel="+channel, "UNAUTHORIZED")
		return command.Faultf("E_UNAUTHORIZED AUTH failed for %s on %q %q", command.VerbSub, topic, channel)
	}
	next := *c.login.Load()
	next.topic, next.channel = topic, channel
	c.login.Store(&next)
	if !c.srv.opts.Auth.Current(who, time.Now()) {
		c.reconsider() // the file was read again in the meantime, perhaps before Reload could see this subscription
	}
	return nil
}

// lapsed reports whether what an auth server has said about the subscription's client has expired. Any goroutine may
// call it.
func (c *conn) lapsed(now time.Time) bool {
	l := c.login.Load()
	return l != nil && l.topic != "" && !l.who.FromFile() && !c.srv.opts.Auth.Current(l.who, now)
}

// renew asks the auth servers again about the client of a subscription, and ends the connection if it may not have it
// any more. The sweep starts it, one at a time for a connection.
func (c *conn) renew() {
	defer c.renewing.Store(false)
	l := c.login.Load()
	who, err := c.srv.opts.Auth.Find(c.ctx, auth.CredentialOf(l.secret, c.remote, c.link.Load().tls))
	switch {
	case c.ctx.Err() != nil:
	case err != nil || !auth.May(who, auth.Subscribe, auth.Channel(l.topic, l.channel)):
		c.srv.opts.Logger.Info("closing an NSQ connection: the auth server does not allow its subscription any more",
			"client", c.remote, "name", l.who.Name())
		c.stop()
	default:
		next := *l
		next.who, next.owner = who, node.ProducerOwner(who.Name())
		c.login.CompareAndSwap(l, &next) // else the reader has asked, too
	}
}

// reconsider ends the connection if the token file, which has been read again, no longer allows its subscription. A
// permission to publish is checked at the next publish. Any goroutine may call it.
func (c *conn) reconsider() {
	l := c.login.Load()
	if l == nil || !l.who.FromFile() || l.topic == "" {
		return
	}
	who := c.srv.opts.Auth.FindToken(l.secret)
	if who == nil || !auth.May(who, auth.Subscribe, auth.Channel(l.topic, l.channel)) {
		c.srv.opts.Logger.Info("closing an NSQ connection: its token does not allow its subscription any more",
			"client", c.remote, "name", l.who.Name())
		c.stop()
	}
}
