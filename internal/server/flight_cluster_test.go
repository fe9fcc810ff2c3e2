package server

import (
	"strings"
	"testing"
	"time"

	"penstock/internal/server/nsq"
)

// In a cluster the bound also applies at the leader, and to a client that gets its messages from other nodes. Messages
// on their way to the client count.
func TestMaxInFlightBytesInACluster(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, 3, Options{Settings: nsq.Settings{MaxInFlightBytes: 10_000}, BroadcastAddress: "127.0.0.1"})
	leader, other := bystander(t, nodes, "t")
	body := strings.Repeat("x", 4000)
	for _, x := range []struct {
		channel string
		n       *testNode
	}{{"led", leader}, {"fetched", other}} {
		t.Run(x.channel, func(t *testing.T) {
			c := x.n.dial(t)
			c.Identify(`{"msg_timeout":4000}`)
			c.Sub("t", x.channel)
			for range 8 {
				other.post(t, "/pub?topic=t", body)
			}
			c.Send("RDY 100\n")
			began := time.Now()
			first, second, _ := c.Message(), c.Message(), c.Message()
			c.Silent(100 * time.Millisecond)
			inFlight := func() int { return leader.stats.Collect("t", x.channel, true).Topics[0].Channels[0].InFlightCount }
			if n := inFlight(); n != 3 {
				t.Errorf("%d messages are in flight at the leader", n)
			}
			c.Send("FIN " + first.ID + "\n")
			c.Message()
			c.Silent(50 * time.Millisecond)
			c.Send("REQ " + second.ID + " 60000\n")
			c.Message()
			c.Silent(50 * time.Millisecond)
			if n := inFlight(); n != 3 {
				t.Errorf("%d messages are in flight at the leader after a FIN and a REQ", n)
			}
			for range 3 { // nothing is finished: three messages time out, and three are delivered
				c.Message()
			}
			if time.Since(began) < 4*time.Second {
				t.Errorf("more came after %v, before anything timed out", time.Since(began))
			}
			c.Conn.Close()
			leader.post(t, "/channel/delete?topic=t&channel="+x.channel, "")
		})
	}
	large := other.dial(t)
	large.Sub("t", "large")
	other.post(t, "/mpub?topic=t", strings.Repeat("y", 50_000)+"\nz\n")
	large.Send("RDY 5\n")
	m := large.Message()
	if len(m.Body) != 50_000 {
		t.Fatalf("%d bytes came first", len(m.Body))
	}
	large.Silent(50 * time.Millisecond)
	large.Send("FIN " + m.ID + "\n")
	if m := large.Message(); m.Body != "z" {
		t.Errorf("then came %.20q", m.Body)
	}
}
