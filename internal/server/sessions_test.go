package server

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/auth/authtest"
)

func TestSessionsEnd(t *testing.T) {
	var s sessions
	now := time.Now()
	a, b := s.begin("one", now), s.begin("two", now)
	if s.secret(a, now) != "one" || s.secret(b, now) != "two" || s.secret("", now) != "" || s.secret("one", now) != "" {
		t.Error("a session is not found, or one that there is not")
	}
	s.end(a)
	if s.secret(a, now) != "" || s.secret(b, now.Add(maxSessionIdle/2)) != "two" {
		t.Error("another session has ended than that of the logout")
	}
	if s.secret(b, now.Add(maxSessionIdle+time.Second)) != "two" {
		t.Error("a session in use has ended")
	}
	for at := now; at.Before(now.Add(maxSessionTime)); at = at.Add(maxSessionIdle / 2) {
		s.secret(b, at)
	}
	if s.secret(b, now.Add(maxSessionTime)) != "" {
		t.Error("a session never ends while it is used")
	}
	c := s.begin("three", now)
	if s.secret(c, now.Add(maxSessionIdle)) != "" {
		t.Error("a session that nobody uses stays")
	}
	first := s.begin("busy", now)
	for i := range maxSecretSessions {
		s.begin("busy", now.Add(time.Duration(i+1)*time.Millisecond))
	}
	if s.secret(first, now) != "" || s.secret(c, now) != "three" {
		t.Error("one secret's sessions push out those of another")
	}
	s.begin("late", now.Add(2*maxSessionTime))
	if len(s.all) != 1 {
		t.Errorf("%d sessions are kept, of which one is in force", len(s.all))
	}
}

// Two servers on one host name do not log each other out, and what one gave is worth nothing at the other. A logout
// ends the session, and so does the removal of its token.
func TestSessionsOfTwoServers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	admin := "permissions = [\"admin\"]\ntopics = [\"*\"]"
	authtest.Write(t, name, authtest.Token("root", "s3cret", admin))
	o := Options{Auth: auth.Options{File: name}}
	a, b := startNode(t, node.Options{}, o), startNode(t, node.Options{}, o)
	login := func(n *testNode) string {
		reply, text := request(t, "POST", n.base+"/session", `{"token":"s3cret"}`)
		cookies := reply.Cookies()
		if len(cookies) != 1 || cookies[0].Value == "" || strings.Contains(cookies[0].Value, "s3cret") {
			t.Fatalf("%v %s", cookies, text)
		}
		return cookies[0].Name + "=" + cookies[0].Value
	}
	status := func(n *testNode, cookie string) int {
		reply, _ := request(t, "GET", n.base+"/audit", "", "Cookie", cookie)
		return reply.StatusCode
	}
	ofA, ofB := login(a), login(b)
	nameA, valueA, _ := strings.Cut(ofA, "=")
	nameB, _, _ := strings.Cut(ofB, "=")
	both := ofA + "; " + ofB
	if nameA == nameB || status(a, both) != 200 || status(b, both) != 200 {
		t.Errorf("%s and %s: %d %d", nameA, nameB, status(a, both), status(b, both))
	}
	for what, cookie := range map[string]string{
		"another server's cookie": ofA, "its value in an own one": nameB + "=" + valueA,
		"the secret itself": nameB + "=s3cret", "of an earlier version": "penstock-token=s3cret",
	} {
		if got := status(b, cookie); got != http.StatusUnauthorized {
			t.Errorf("%s: %d", what, got)
		}
	}
	if reply, _ := request(t, "GET", b.base+"/audit", "", "Authorization", "Bearer "+valueA); reply.StatusCode != 401 {
		t.Errorf("a session's id as a token: %d", reply.StatusCode)
	}
	request(t, "DELETE", a.base+"/session", "", "Cookie", both)
	if status(a, ofA) != 401 || status(b, ofB) != 200 {
		t.Errorf("after the logout at one server: %d %d", status(a, ofA), status(b, ofB))
	}
	authtest.Write(t, name, authtest.Token("other", "other", admin))
	if err := b.ReloadTokens(); err != nil {
		t.Fatal(err)
	}
	if got := status(b, ofB); got != 401 {
		t.Errorf("after the token was removed: %d", got)
	}
}
