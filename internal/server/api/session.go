package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"penstock/internal/server/auth"
	"penstock/internal/server/web"
)

// cookieName is the name of the cookie that holds the id of a browser's session: no script can read it, and no page of
// another site makes a browser send it. Browsers send cookies to all ports of a host name, so the name tells the
// servers of a host apart. With TLS it has another beginning, which browsers accept only from this very host, and only
// over TLS.
func (s *Guard) cookieName(r *http.Request) string {
	hash := sha256.Sum256([]byte(s.engine.Info().StoreID))
	name := "penstock-" + hex.EncodeToString(hash[:8])
	if r.TLS != nil {
		name = "__Host-" + name
	}
	return name
}

// Session is the answer of /session: what this node knows of the client. Without Auth nothing has to be proved, and
// every client may do everything. Strangers are told of Auth only.
type Session struct {
	Auth    bool   `json:"auth"` // clients must prove who they are
	Name    string `json:"name"` // what the client has proved; "": nothing
	View    bool   `json:"view"` // it may look at everything
	Admin   bool   `json:"admin"`
	Cluster bool   `json:"cluster"`
	Node    string `json:"node"`
	Version string `json:"version"`

	Creates bool `json:"creates,omitempty"` // it may make some topics; if one is named: some channels of it
	Looks   bool `json:"looks,omitempty"`   // it may look at some topics; if one is named: at some channels of it
	May     *May `json:"may,omitempty"`     // only in the answer to a GET that names a topic
}

// May is what a client may do with a topic, or with a channel of it. The routes decide by the same rules, so that the
// console can leave out what they would refuse.
type May struct {
	Publish   bool `json:"publish"`   // to the topic, also where a channel is named
	Subscribe bool `json:"subscribe"` // to the channel; where none is named: read the topic, with all its messages
	View      bool `json:"view"`
	Admin     bool `json:"admin"` // of the channel; where none is named: of the topic as a whole
}

// cookieOf returns the id in a request's cookie, or "".
func (s *Guard) cookieOf(r *http.Request) string {
	c, err := r.Cookie(s.cookieName(r))
	if err != nil {
		return ""
	}
	return c.Value
}

// setCookie gives the client a cookie, which ends with the browser; "" takes it back.
func (s *Guard) setCookie(w http.ResponseWriter, r *http.Request, id string) {
	c := &http.Cookie{
		Name: s.cookieName(r), Value: id, Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
	if id == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// serveSession tells a client who it is (GET), takes its secret and begins a session (POST), or ends that (DELETE).
func (s *Service) serveSession(w http.ResponseWriter, r *http.Request) {
	secret := s.tokenOf(r)
	switch r.Method {
	case http.MethodPost:
		var who *auth.Principal
		var err error
		if secret, err = readSecret(r); err == nil && s.auth != nil {
			who, err = s.principal(r, secret)
		}
		if err != nil {
			s.audit.Refused(web.EntryOf("", r, "login", ""), err.Error())
			web.WriteError(w, err)
			return
		}
		if s.auth != nil {
			s.sessions.end(s.cookieOf(r))
			s.setCookie(w, r, s.sessions.begin(secret, who.Name(), time.Now()))
		}
	case http.MethodDelete:
		s.sessions.end(s.cookieOf(r))
		s.setCookie(w, r, "")
		secret = ""
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(s.session(r, secret)) // an error means that the client is gone
}

// mayOf returns what the client may do with the topic, and the channel, that the query names; nil if it names no topic.
// who is nil without Auth.
func mayOf(who *auth.Principal, q url.Values) *May {
	topic, channel := q.Get("topic"), q.Get("channel")
	if topic == "" {
		return nil
	}
	on, admin := auth.WholeTopic(topic), web.AdminTopic
	if channel != "" {
		on, admin = auth.Channel(topic, channel), web.Admin
	}
	return &May{
		Publish: allows(who, web.Publish, q), Subscribe: auth.May(who, auth.Subscribe, on),
		View: allows(who, web.View, q), Admin: allows(who, admin, q),
	}
}

// session returns what the node knows of the client with this secret.
func (s *Service) session(r *http.Request, secret string) Session {
	var q url.Values
	if r.Method == http.MethodGet {
		q = r.URL.Query()
	}
	out := Session{
		Auth: s.auth != nil, View: true, Admin: true, Cluster: s.engine.Snapshot() != nil,
		Creates: true, Looks: true, May: mayOf(nil, q),
	}
	if s.auth != nil {
		who, err := s.principal(r, secret)
		if err != nil {
			return Session{Auth: true}
		}
		out.Name = who.Name()
		out.View, out.Admin = auth.May(who, auth.View, auth.Node()), auth.May(who, auth.Admin, auth.Node())
		some := auth.SomeTopic()
		if topic := q.Get("topic"); topic != "" {
			some = auth.SomeChannel(topic)
		}
		out.Creates, out.Looks = auth.May(who, auth.Admin, some), auth.May(who, auth.View, some)
		out.May = mayOf(who, q)
	}
	out.Node, out.Version = s.Name(), s.opts.Version
	return out
}

// readSecret reads the secret from the body {"token": …}.
func readSecret(r *http.Request) (string, error) {
	data, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 2*auth.MaxSecretBytes))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return "", web.Fail(http.StatusRequestEntityTooLarge, "the body is larger than any that has a token")
	}
	var body struct {
		Token string `json:"token"`
	}
	if err != nil || json.Unmarshal(data, &body) != nil || body.Token == "" {
		return "", badArgument("the body is not the JSON {\"token\": …}")
	}
	return body.Token, nil
}
