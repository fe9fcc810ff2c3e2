package nsq

import (
	"encoding/json"
	"errors"
	"net"
	"time"

	"penstock/nsq/auth"
)

// login is what AUTH proved. Immutable.
type login struct {
	who    *auth.Principal
	secret string // to ask again; never logged

	// What the connection subscribed to with it; empty: nothing.
	topic, channel string
}

// granted remembers the last topic that the client was allowed to publish to, and the principal who was: producers
// rarely change their topic. The reader's.
type granted struct {
	who   *auth.Principal
	topic string
}

// credential is the secret with what the servers want to know of the connection.
func (c *conn) credential(secret string) *auth.Credential {
	host, _, err := net.SplitHostPort(c.remote)
	if err != nil {
		host = c.remote
	}
	state := c.link.Load().tls
	return &auth.Credential{Secret: secret, RemoteIP: host, TLS: state != nil, CommonName: commonName(state)}
}

// authenticate is AUTH.
func (c *conn) authenticate(body []byte) *fault {
	if l := c.login.Load(); l != nil {
		return &fault{"E_INVALID AUTH already set"}
	}
	if c.srv.auth == nil {
		return &fault{"E_AUTH_DISABLED AUTH disabled"}
	}
	secret := string(body)
	clear(body) // the read buffer is used again
	who, f := c.prove(secret)
	if f != nil {
		return f
	}
	if who.GrantCount() == 0 {
		return &fault{"E_UNAUTHORIZED AUTH no authorizations found"}
	}
	c.login.Store(&login{who: who, secret: secret})
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

// prove finds whom the secret stands for; it may wait for a server. Clients learn nothing of what went wrong with one.
func (c *conn) prove(secret string) (*auth.Principal, *fault) {
	c.submit()
	c.waiting.Store(true)
	who, err := c.srv.auth.Find(c.ctx, c.credential(secret))
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
	switch {
	case errors.Is(err, auth.ErrUnknownSecret):
		c.srv.opts.Logger.Info("refusing an NSQ client: its secret is unknown", "client", c.remote)
	case err != nil:
		c.srv.opts.Logger.Warn("refusing an NSQ client: nobody could say what it may do", "client", c.remote, "error", err)
	default:
		return who, nil
	}
	return nil, &fault{"E_AUTH_FAILED AUTH failed"}
}

// currentPrincipal is the client's principal. If the token file was read again, or a server's answer has expired, it is
// asked for again first, which may wait for a server. v names the command in the error frame. Only the reader calls it.
func (c *conn) currentPrincipal(v string) (*auth.Principal, *fault) {
	l := c.login.Load()
	if l == nil {
		return nil, &fault{"E_AUTH_FIRST AUTH required before " + v}
	}
	if c.srv.auth.Current(l.who, time.Now()) {
		return l.who, nil
	}
	who, f := c.prove(l.secret)
	if f != nil {
		return nil, f
	}
	next := *l
	next.who = who
	c.login.Store(&next)
	return who, nil
}

// mayPublish checks a PUB, MPUB or DPUB. A run of them is checked at its first.
func (c *conn) mayPublish(cmd *command) *fault {
	if c.srv.auth == nil {
		return nil
	}
	who, f := c.currentPrincipal(cmd.verb.String())
	switch {
	case f != nil:
		return f
	case c.granted.who == who && c.granted.topic == string(cmd.topic):
		return nil
	case !who.Allows(auth.Publish, string(cmd.topic), ""):
		return faultf("E_UNAUTHORIZED AUTH failed for %s on %q %q", cmd.verb, cmd.topic, "")
	}
	c.granted = granted{who, string(cmd.topic)}
	return nil
}

// maySubscribe checks a SUB.
func (c *conn) maySubscribe(topic, channel string) *fault {
	if c.srv.auth == nil {
		return nil
	}
	who, f := c.currentPrincipal(verbSub.String())
	if f != nil {
		return f
	}
	if !who.Allows(auth.Subscribe, topic, channel) {
		return faultf("E_UNAUTHORIZED AUTH failed for %s on %q %q", verbSub, topic, channel)
	}
	next := *c.login.Load()
	next.topic, next.channel = topic, channel
	c.login.Store(&next)
	if !c.srv.auth.Current(who, time.Now()) {
		c.reconsider() // the file was read again meanwhile, perhaps before Reload could see this subscription
	}
	return nil
}

// reconsider ends the connection if the token file, which was read again, does not allow its subscription any more.
// Publishing is checked when the client publishes next. Any goroutine may call it.
func (c *conn) reconsider() {
	l := c.login.Load()
	if l == nil || !l.who.FromFile() || l.topic == "" {
		return
	}
	who := c.srv.auth.FindToken(l.secret)
	if who == nil || !who.Allows(auth.Subscribe, l.topic, l.channel) {
		c.srv.opts.Logger.Info("closing an NSQ connection: its token does not allow its subscription any more",
			"client", c.remote, "name", l.who.Name())
		c.stop()
	}
}
