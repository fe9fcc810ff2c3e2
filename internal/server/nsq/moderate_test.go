package nsq

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// postNumbers publishes the numbers below count.
func (n *testNode) postNumbers(t *testing.T, topic string, count int) {
	t.Helper()
	var bodies []string
	for i := range count {
		bodies = append(bodies, fmt.Sprint(i))
	}
	n.publish(t, topic, bodies...)
}

// finishing subscribes with RDY rdy to a topic with count messages, and finishes them as FinishNext does, holding half
// of rdy.
func finishing(t *testing.T, n *testNode, c *nsqtest.Client, topic string, rdy, count int) map[string]int {
	t.Helper()
	n.postNumbers(t, topic, count)
	c.Sub(topic, "c")
	c.Send(fmt.Sprintf("RDY %d\n", rdy))
	return c.FinishNext(rdy/2, count)
}

// untilModerated finishes more and more messages until a read of the node is moderated. How many FINs come with one
// read, and so how many reads there are, is up to the scheduler.
func untilModerated(t *testing.T, n *testNode, c *nsqtest.Client, topic string, hold int) {
	t.Helper()
	nsqtest.Eventually(t, "a moderated read", func() bool {
		n.postNumbers(t, topic, 2000)
		c.FinishNext(hold, 2000)
		return n.counts.moderated.Load() > 0
	})
}

func openSockets(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// The commands of a consumer that finishes quickly and has many messages in flight are gathered. It gets each message
// once. Its connection then serves a command that waits for the disk, a pause, and ends like any other, without leaving
// a descriptor open.
//
// Any pace is quick here, and TestPace holds the real one: on a loaded machine the server needs longer than that for
// its own part, finds all FINs that the client can send in one read, and has nothing to gather.
func TestModeratedConsumer(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{ModerationPace: time.Hour})
	before := openSockets(t)
	c := n.dial(t)
	for body, times := range finishing(t, n, c, "busy", 40, 2000) {
		if times != 1 {
			t.Errorf("message %s came %d times", body, times)
		}
	}
	untilModerated(t, n, c, "busy", 20)
	c.Send(nsqtest.Pub("another", "x"))
	c.OK()
	n.publish(t, "busy", "after a pause")
	if m := c.Message(); m.Body != "after a pause" {
		t.Errorf("got %q", m.Body)
	} else {
		c.Send("FIN " + m.ID + "\nCLS\n")
	}
	c.Expect(frameResponse, "CLOSE_WAIT")
	c.Conn.Close()
	nsqtest.Eventually(t, "all sockets are closed", func() bool { return openSockets(t) <= before })
	nsqtest.Eventually(t, "all messages are finished", func() bool {
		s := n.topicNow(t, "busy").Channels[0]
		return s.InFlightCount == 0 && s.Depth == 0
	})
}

// A connection that is killed, or told to stop, while its socket is detached ends at once.
func TestModeratedConsumerEnds(t *testing.T) {
	for name, end := range map[string]func(*conn){"kill": (*conn).kill, "stop": (*conn).stop} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, node.Options{}, Settings{ModerationPace: time.Hour})
			c := n.dial(t)
			finishing(t, n, c, "busy", 40, 2000)
			untilModerated(t, n, c, "busy", 20)
			server := n.onlyConn(t)
			n.postNumbers(t, "busy", 2000)
			for range 500 {
				c.Send("FIN " + c.Message().ID + "\n")
			}
			end(server)
			nsqtest.Eventually(t, "the connection's end", func() bool {
				alive := false
				n.each(func(*conn) { alive = true })
				if alive && name == "stop" {
					_ = c.Conn.SetReadDeadline(time.Now().Add(time.Millisecond))
					_, _ = c.Conn.Read(make([]byte, 64<<10)) // it lingers until the client has read
					c.Conn.CloseWrite()
				}
				return !alive
			})
		})
	}
}

// A consumer that has one message in flight waits for the next one, so nothing is gathered for it.
func TestLoneMessageIsNotModerated(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{ModerationPace: time.Hour})
	c := n.dial(t)
	finishing(t, n, c, "lone", 1, 500)
	if k := n.counts.moderated.Load(); k != 0 {
		t.Errorf("%d reads were moderated", k)
	}
}

// pace asks for a row of quick reads, each of a busy consumer.
func TestPace(t *testing.T) {
	const step = int64(moderationPace)
	always := func(int) bool { return true }
	for name, c := range map[string]struct {
		gap  func(i int) int64
		busy func(i int) bool
		want bool
	}{
		"quick":                 {func(int) int64 { return step }, always, true},
		"slow":                  {func(int) int64 { return step + 1 }, always, false},
		"a pause in between":    {func(i int) int64 { return step * int64(1+i%20/19) }, always, false},
		"not busy":              {func(int) int64 { return 0 }, func(int) bool { return false }, false},
		"not busy in between":   {func(int) int64 { return 0 }, func(i int) bool { return i%20 != 19 }, false},
		"busy since the middle": {func(int) int64 { return 0 }, func(i int) bool { return i >= 50 }, true},
	} {
		p := pace{within: step}
		now, got := int64(0), false
		for i := range 100 {
			now += c.gap(i)
			got = p.read(now, c.busy(i))
		}
		if got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
