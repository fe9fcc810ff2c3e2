package server

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/tests/support/authtest"
)

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
