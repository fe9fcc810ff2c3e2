package server

import (
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq"
	"penstock/tests/support/nsqtest"
)

// One token has its share of the connections, of NSQ's and native clients together: for another one there is room.
func TestConnectionsOfAToken(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{
		Settings: nsq.Settings{MaxConnections: 8},
		Auth:     auth.Options{File: grantTokens(t)}, NativeAddress: "127.0.0.1:0",
	})
	login := func(token string) (*nsqtest.Client, string) {
		c := n.dial(t)
		c.Send(authCommand(token))
		_, text, err := c.Frame(nsqtest.Patience)
		if err != nil {
			t.Fatal(err)
		}
		return c, string(text)
	}
	var held []*nsqtest.Client
	for range 4 {
		c, text := login("filler")
		if strings.HasPrefix(text, "E_") {
			t.Fatal(text)
		}
		held = append(held, c)
	}
	want := "E_AUTH_FAILED AUTH failed: the token filler has as many connections as it may have on this node, 4 "
	if _, text := login("filler"); !strings.HasPrefix(text, want) {
		t.Errorf("one more: %s", text)
	}
	for _, token := range []string{"mailer", "root"} {
		if _, text := login(token); strings.HasPrefix(text, "E_") {
			t.Errorf("%s: %s", token, text)
		}
	}
	held[0].Conn.Close()
	nsqtest.Eventually(t, "room for another one", func() bool {
		c, text := login("filler")
		defer c.Conn.Close()
		return !strings.HasPrefix(text, "E_")
	})
}
