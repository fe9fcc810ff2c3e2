package nsq

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"penstock/nsq/auth"
	"penstock/nsq/internal/web"
)

// The cookie that holds a client's secret, for browsers: no script can read it, and no page of another site makes a
// browser send it. With TLS it has another name, which browsers accept only from this very host, and only over TLS.
const (
	cookieName    = "penstock-token"
	tlsCookieName = "__Host-penstock-token"
)

// Session is the answer of /session: what this node knows of the client. Without Auth nothing has to be proved, and
// every client may do everything. Node and Version are not for strangers.
type Session struct {
	Auth    bool   `json:"auth"` // clients must prove who they are
	Name    string `json:"name"` // what the client has proved; "": nothing
	View    bool   `json:"view"` // it may look at everything
	Admin   bool   `json:"admin"`
	Cluster bool   `json:"cluster"`
	Node    string `json:"node"`
	Version string `json:"version"`
}

// cookieOf returns the secret in a request's cookie, or "".
func cookieOf(r *http.Request) string {
	name := cookieName
	if r.TLS != nil {
		name = tlsCookieName
	}
	c, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	secret, err := url.QueryUnescape(c.Value)
	if err != nil {
		return ""
	}
	return secret
}

// setCookie gives the client a cookie, which ends with the browser; "" takes it back.
func setCookie(w http.ResponseWriter, r *http.Request, secret string) {
	c := &http.Cookie{
		Name: cookieName, Value: url.QueryEscape(secret), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
	if r.TLS != nil {
		c.Name, c.Secure = tlsCookieName, true
	}
	if secret == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// serveSession tells a client who it is (GET), takes its secret and gives it a cookie for it (POST), or takes the
// cookie back (DELETE).
func (s *Server) serveSession(w http.ResponseWriter, r *http.Request) {
	secret := tokenOf(r)
	switch r.Method {
	case http.MethodPost:
		var err error
		if secret, err = readSecret(r); err == nil && s.auth != nil {
			_, err = s.principal(r, secret)
		}
		if err != nil {
			s.audit.Refused(web.EntryOf("", r, "login", ""), err.Error())
			web.WriteError(w, err)
			return
		}
		if s.auth != nil {
			setCookie(w, r, secret)
		}
	case http.MethodDelete:
		setCookie(w, r, "")
		secret = ""
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(s.session(r, secret)) // an error means that the client is gone
}

func (s *Server) session(r *http.Request, secret string) Session {
	out := Session{Auth: s.auth != nil, View: true, Admin: true, Cluster: s.engine.Snapshot() != nil}
	if s.auth != nil {
		who, err := s.principal(r, secret)
		if err != nil {
			return Session{Auth: true}
		}
		out.Name, out.View, out.Admin = who.Name(), who.AllowsNode(auth.View), who.AllowsNode(auth.Admin)
	}
	out.Node, out.Version = s.name(), s.opts.Version
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
