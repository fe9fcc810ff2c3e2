package server

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
	"penstock/segment/aio/faultaio"
)

// crowd publishes with count clients at a time, one PUB each, until the poll reads all of them. It returns the clients
// and how many messages each has published.
func crowd(t *testing.T, n *testNode, count int) (clients []*client, each int) {
	t.Helper()
	for range count {
		clients = append(clients, n.dial(t))
	}
	eventually(t, "the poll reads all publishers", func() bool {
		for range answersBeforePoll {
			together(t, clients, pub("crowd", fmt.Sprint(each)))
			each++
		}
		return int(n.nsq.poll.size.Load()) == count
	})
	return clients, each
}

// crowdOn is crowd on a disk that holds the writes until all clients have published: otherwise a busy machine answers
// them one by one, and nobody takes them for a crowd. It returns at least enough clients, all that the poll reads then:
// the last ones that their own readers read may always be the first in a group, and so be answered alone.
func crowdOn(t *testing.T, n *testNode, disk *faultaio.Disk, count, enough int) (polled []*client) {
	t.Helper()
	var clients []*client
	for range count {
		clients = append(clients, n.dial(t))
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true, Count: -1})
	eventually(t, "the poll reads enough publishers", func() bool {
		for _, i := range rand.Perm(len(clients)) {
			clients[i].send(pub("crowd", "x"))
		}
		eventually(t, "all PUBs wait", func() bool { return owed(n) == count })
		eventually(t, "all PUBs are answered", func() bool {
			disk.ReleaseHeld()
			return owed(n) == 0
		})
		for _, c := range clients {
			c.ok()
		}
		return int(n.nsq.poll.size.Load()) >= enough
	})
	disk.ClearRules()
	disk.ReleaseHeld()
	n.nsq.poll.mu.Lock()
	defer n.nsq.poll.mu.Unlock()
	for _, c := range n.nsq.poll.members {
		polled = append(polled, clients[slices.IndexFunc(clients, func(o *client) bool {
			return o.nc.LocalAddr().String() == c.remote
		})])
	}
	return polled
}

// owed is how many answers the server owes.
func owed(n *testNode) (count int) {
	n.nsq.each(func(c *conn) {
		c.answers.mu.Lock()
		defer c.answers.mu.Unlock()
		count += c.answers.count
	})
	return count
}

// together sends a command from each client and then reads an OK for each.
func together(t *testing.T, clients []*client, command string) {
	t.Helper()
	for _, i := range rand.Perm(len(clients)) { // the first one is often answered alone
		clients[i].send(command)
	}
	for _, c := range clients {
		c.ok()
	}
}

// A crowd of publishers is read by the poll. Each PUB is stored once and answered.
func TestPollOfPublishers(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=crowd", "")
	n.post(t, "/channel/create?topic=crowd&channel=c", "")
	const count = 40
	_, each := crowd(t, n, count)
	if n.nsq.counts.moderated.Load() == 0 {
		t.Error("no read is counted as moderated")
	}
	eventually(t, "every message is stored once", func() bool {
		return n.topicNow(t, "crowd").Channels[0].Depth == int64(count*each)
	})
}

// Commands that the poll does not execute are executed by the connection's reader, in the order in which they came.
func TestPollGivesBack(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	clients, _ := crowd(t, n, 20)
	for i, c := range []struct {
		name, send string
		want       []string // frames
	}{
		{"another topic", pub("other", "x") + pub("crowd", "y"), []string{"OK", "OK"}},
		{"a PUB before", pub("crowd", "x") + pub("another", "x") + pub("crowd", "y"), []string{"OK", "OK", "OK"}},
		{"MPUB", "MPUB crowd\n" + sized("\x00\x00\x00\x02"+sized("x")+sized("y")), []string{"OK"}},
		{"DPUB", "DPUB crowd 5\n\x00\x00\x00\x01x" + pub("crowd", "y"), []string{"OK", "OK"}},
		{"a bad command", pub("crowd", "x") + "NONSENSE\n", []string{"OK", "E_INVALID invalid command NONSENSE"}},
		{"an empty message", "PUB crowd\n\x00\x00\x00\x00", []string{"E_BAD_MESSAGE PUB invalid message body size 0"}},
		{"a large message", pub("crowd", strings.Repeat("x", 200<<10)), []string{"OK"}},
	} {
		c2 := clients[i]
		c2.send(c.send)
		for _, want := range c.want {
			kind, data, err := c2.frame(patience)
			if err != nil || string(data) != want {
				t.Errorf("%s: frame %d %q %v, want %q", c.name, kind, data, err, want)
			}
		}
	}
	half := pub("crowd", "in two pieces")
	c := clients[len(clients)-1]
	c.send(half[:len(half)-4])
	together(t, clients[10:15], pub("crowd", "x"))
	c.send(half[len(half)-4:])
	c.ok()
}

// A client that goes on alone gets its own reader back, so that no PUB of it waits for a nap.
func TestPollLeavesLonePublisher(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	clients, _ := crowd(t, n, 20)
	for range lonelyReads {
		clients[3].send(pub("crowd", "x"))
		clients[3].ok()
	}
	eventually(t, "the connection has left", func() bool { return n.nsq.poll.size.Load() == 19 })
	before := n.nsq.counts.moderated.Load()
	for range 100 {
		clients[3].send(pub("crowd", "x"))
		clients[3].ok()
	}
	if k := n.nsq.counts.moderated.Load(); k != before {
		t.Errorf("%d reads of a lone publisher were moderated", k-before)
	}
}

// Connections that end, are killed or told to stop while the poll reads them end at once, and leave nothing behind.
func TestPollOfEndingConnections(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/pub?topic=other", "x") // opens a connection that stays open
	before := openSockets(t)
	clients, _ := crowd(t, n, 20)
	i, left := 0, int64(0)
	n.nsq.each(func(c *conn) {
		switch i++; i % 3 {
		case 0:
			c.kill()
		case 1:
			c.stop()
		default:
			left++
		}
	})
	eventually(t, "connections that were killed or stopped have left the poll", func() bool {
		return n.nsq.poll.size.Load() == left
	})
	for _, c := range clients {
		c.nc.Close()
	}
	eventually(t, "the poll is empty", func() bool { return n.nsq.poll.size.Load() == 0 })
	eventually(t, "all sockets are closed", func() bool { return openSockets(t) <= before })
}

// A full inbox makes the poll give connections back. Their readers wait for room, and no PUB is lost or refused. The
// other connections are read meanwhile.
func TestPollDoesNotWaitForRoom(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	n := startNode(t, node.Options{Disk: disk, MaxInboxBytes: 4 << 10, AdmitTimeout: patience}, Options{})
	t.Cleanup(func() {
		disk.ClearRules()
		disk.ReleaseHeld()
	})
	clients := crowdOn(t, n, disk, 20, 16)
	last := len(clients) - 1
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true, Count: -1})
	large := strings.Repeat("x", 3<<10)
	for _, c := range clients[:last] {
		c.send(pub("crowd", large))
	}
	eventually(t, "readers wait for room", func() bool { return n.nsq.poll.size.Load() <= int64(last) })
	left := n.nsq.poll.size.Load()
	clients[last].send("NOP\n")
	eventually(t, "the poll goes on", func() bool { return n.nsq.poll.size.Load() < left })
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
		c.ok()
	}
	close(stop)
	wg.Wait()
}

// The server shuts down while the poll reads publishers.
func TestPollAtShutdown(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	clients, _ := crowd(t, n, 20)
	for _, c := range clients {
		c.send(pub("crowd", "last"))
		c.ok()
		c.nc.CloseWrite()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
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
