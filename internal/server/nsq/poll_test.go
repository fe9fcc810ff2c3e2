package nsq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/nsqtest"
)

// crowd publishes with count clients at a time, one PUB each, until the poll reads all of them. It returns the clients
// and how many messages each has published.
func crowd(t *testing.T, n *testNode, count int) (clients []*nsqtest.Client, each int) {
	t.Helper()
	for range count {
		clients = append(clients, n.dial(t))
	}
	nsqtest.Eventually(t, "the poll reads all publishers", func() bool {
		for range answersBeforePoll {
			together(t, clients, nsqtest.Pub("crowd", fmt.Sprint(each)))
			each++
		}
		return int(n.poll.size.Load()) == count
	})
	return clients, each
}

// crowdOn is crowd on a disk that holds the writes until all clients have published: otherwise a busy machine answers
// them one by one, and nobody takes them for a crowd. It returns at least enough clients, all that the poll reads then:
// the last ones that their own readers read may always be the first in a group, and so be answered alone.
func crowdOn(t *testing.T, n *testNode, disk *faultaio.Disk, count, enough int) (polled []*nsqtest.Client) {
	t.Helper()
	var clients []*nsqtest.Client
	for range count {
		clients = append(clients, n.dial(t))
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true, Count: -1})
	nsqtest.Eventually(t, "the poll reads enough publishers", func() bool {
		for _, i := range rand.Perm(len(clients)) {
			clients[i].Send(nsqtest.Pub("crowd", "x"))
		}
		nsqtest.Eventually(t, "all PUBs wait", func() bool { return owed(n) == count })
		nsqtest.Eventually(t, "all PUBs are answered", func() bool {
			disk.ReleaseHeld()
			return owed(n) == 0
		})
		for _, c := range clients {
			c.OK()
		}
		return int(n.poll.size.Load()) >= enough
	})
	disk.ClearRules()
	disk.ReleaseHeld()
	n.poll.mu.Lock()
	defer n.poll.mu.Unlock()
	for _, c := range n.poll.members {
		polled = append(polled, clients[slices.IndexFunc(clients, func(o *nsqtest.Client) bool {
			return o.Conn.LocalAddr().String() == c.remote
		})])
	}
	return polled
}

// owed is how many answers the server owes.
func owed(n *testNode) (count int) {
	n.each(func(c *conn) {
		c.answers.mu.Lock()
		defer c.answers.mu.Unlock()
		count += c.answers.count
	})
	return count
}

// together sends a command from each client and then reads an OK for each.
func together(t *testing.T, clients []*nsqtest.Client, command string) {
	t.Helper()
	for _, i := range rand.Perm(len(clients)) { // the first one is often answered alone
		clients[i].Send(command)
	}
	for _, c := range clients {
		c.OK()
	}
}

// A crowd of publishers is read by the poll. Each PUB is stored once and answered.
func TestPollOfPublishers(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	n.makeChannel(t, "crowd", "c")
	const count = 40
	_, each := crowd(t, n, count)
	if n.counts.moderated.Load() == 0 {
		t.Error("no read is counted as moderated")
	}
	nsqtest.Eventually(t, "every message is stored once", func() bool {
		return n.topicNow(t, "crowd").Channels[0].Depth == int64(count*each)
	})
}

// Commands that the poll does not execute are executed by the connection's reader, in the order in which they came.
func TestPollGivesBack(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	clients, _ := crowd(t, n, 20)
	for i, c := range []struct {
		name, send string
		want       []string // frames
	}{
		{"another topic", nsqtest.Pub("other", "x") + nsqtest.Pub("crowd", "y"), []string{"OK", "OK"}},
		{
			"a PUB before", nsqtest.Pub("crowd", "x") + nsqtest.Pub("another", "x") + nsqtest.Pub("crowd", "y"),
			[]string{"OK", "OK", "OK"},
		},
		{"MPUB", "MPUB crowd\n" + nsqtest.Sized("\x00\x00\x00\x02"+nsqtest.Sized("x")+nsqtest.Sized("y")), []string{"OK"}},
		{"DPUB", "DPUB crowd 5\n\x00\x00\x00\x01x" + nsqtest.Pub("crowd", "y"), []string{"OK", "OK"}},
		{"a bad command", nsqtest.Pub("crowd", "x") + "NONSENSE\n", []string{"OK", "E_INVALID invalid command NONSENSE"}},
		{"an empty message", "PUB crowd\n\x00\x00\x00\x00", []string{"E_BAD_MESSAGE PUB invalid message body size 0"}},
		{"a large message", nsqtest.Pub("crowd", strings.Repeat("x", 200<<10)), []string{"OK"}},
	} {
		c2 := clients[i]
		c2.Send(c.send)
		for _, want := range c.want {
			kind, data, err := c2.Frame(nsqtest.Patience)
			if err != nil || string(data) != want {
				t.Errorf("%s: frame %d %q %v, want %q", c.name, kind, data, err, want)
			}
		}
	}
	half := nsqtest.Pub("crowd", "in two pieces")
	c := clients[len(clients)-1]
	c.Send(half[:len(half)-4])
	together(t, clients[10:15], nsqtest.Pub("crowd", "x"))
	c.Send(half[len(half)-4:])
	c.OK()
}

// A client that goes on alone gets its own reader back, so that no PUB of it waits for a nap.
func TestPollLeavesLonePublisher(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	clients, _ := crowd(t, n, 20)
	for range lonelyReads {
		clients[3].Send(nsqtest.Pub("crowd", "x"))
		clients[3].OK()
	}
	nsqtest.Eventually(t, "the connection has left", func() bool { return n.poll.size.Load() == 19 })
	before := n.counts.moderated.Load()
	for range 100 {
		clients[3].Send(nsqtest.Pub("crowd", "x"))
		clients[3].OK()
	}
	if k := n.counts.moderated.Load(); k != before {
		t.Errorf("%d reads of a lone publisher were moderated", k-before)
	}
}

// Connections that end, are killed or told to stop while the poll reads them end at once, and leave nothing behind.
func TestPollOfEndingConnections(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	before := openSockets(t)
	clients, _ := crowd(t, n, 20)
	i, left := 0, int64(0)
	n.each(func(c *conn) {
		switch i++; i % 3 {
		case 0:
			c.kill()
		case 1:
			c.stop()
		default:
			left++
		}
	})
	nsqtest.Eventually(t, "connections that were killed or stopped have left the poll", func() bool {
		return n.poll.size.Load() == left
	})
	for _, c := range clients {
		c.Conn.Close()
	}
	nsqtest.Eventually(t, "the poll is empty", func() bool { return n.poll.size.Load() == 0 })
	nsqtest.Eventually(t, "all sockets are closed", func() bool { return openSockets(t) <= before })
}

// A full inbox makes the poll give connections back. Their readers wait for room, and no PUB is lost or refused. The
// other connections are read meanwhile.
func TestPollDoesNotWaitForRoom(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	n := startNode(t, node.Options{Disk: disk, MaxInboxBytes: 4 << 10, AdmitTimeout: nsqtest.Patience}, Settings{})
	t.Cleanup(func() {
		disk.ClearRules()
		disk.ReleaseHeld()
	})
	clients := crowdOn(t, n, disk, 20, 16)
	last := len(clients) - 1
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true, Count: -1})
	large := strings.Repeat("x", 3<<10)
	for _, c := range clients[:last] {
		c.Send(nsqtest.Pub("crowd", large))
	}
	nsqtest.Eventually(t, "readers wait for room", func() bool { return n.poll.size.Load() <= int64(last) })
	left := n.poll.size.Load()
	clients[last].Send("NOP\n")
	nsqtest.Eventually(t, "the poll goes on", func() bool { return n.poll.size.Load() < left })
	disk.ClearRules()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				disk.ReleaseHeld()
			}
		}
	})
	for _, c := range clients[:last] {
		c.OK()
	}
	close(stop)
	wg.Wait()
}

// The server shuts down while the poll reads publishers.
func TestPollAtShutdown(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	clients, _ := crowd(t, n, 20)
	for _, c := range clients {
		c.Send(nsqtest.Pub("crowd", "last"))
		c.OK()
		c.Conn.CloseWrite()
	}
	ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
	defer cancel()
	n.Shutdown(ctx)
}

// A publisher is one of a crowd if it is mostly answered together with many others.
func TestCrowding(t *testing.T) {
	for name, c := range map[string]struct {
		clients func(i int) int
		want    bool
	}{
		"a crowd":              {func(int) int { return crowdSize }, true},
		"few":                  {func(int) int { return crowdSize - 1 }, false},
		"mostly a crowd":       {func(i int) int { return 1 + i%4*crowdSize }, true},
		"mostly alone":         {func(i int) int { return 1 + i%4/3*crowdSize }, false},
		"a crowd, later alone": {func(i int) int { return max(1, crowdSize+60-i) }, false},
	} {
		var p crowding
		for i := range 100 {
			p.answered(c.clients(i))
		}
		if p.isOne() != c.want {
			t.Errorf("%s: %v, want %v", name, !c.want, c.want)
		}
	}
}

// The poll naps only after a round that found several inputs, and only a few times.
func TestNaps(t *testing.T) {
	var p naps
	count := func() (n int) {
		for p.round(0) {
			n++
		}
		return n
	}
	if k := count(); k != 0 {
		t.Errorf("%d naps before any input", k)
	}
	p.round(1)
	if k := count(); k != 0 {
		t.Errorf("%d naps after a lone input", k)
	}
	p.round(2)
	if k := count(); k != moderationPatience {
		t.Errorf("%d naps after two inputs, want %d", k, moderationPatience)
	}
	p.round(2)
	p.round(0)
	p.round(1)
	if k := count(); k != moderationPatience-1 {
		t.Errorf("%d naps, want those that were left", k)
	}
}
