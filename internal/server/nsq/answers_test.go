package nsq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/nsq/command"
	"penstock/tests/support/nsqtest"
)

// onlyConn returns the server's side of the only connection.
func (n *testNode) onlyConn(t *testing.T) *conn {
	t.Helper()
	var server *conn
	nsqtest.Eventually(t, "the connection", func() bool { n.each(func(c *conn) { server = c }); return server != nil })
	return server
}

// Puts that the engine completes in any order are answered in the order of the commands. After a failed Put nothing is
// answered.
func TestAnswersKeepTheirOrder(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Send("NOP\n")
	server := n.onlyConn(t)
	to := &target{name: "t"}
	var ps []*pending
	for i := range 5 {
		p := newPending(server, command.VerbPub)
		p.to, p.count = to, i+1
		p.put.Messages = append(p.put.Messages, nil)
		server.answers.push(p)
		ps = append(ps, p)
	}
	ps[3].put.Err = errors.New("no room")
	ps[2].completed()
	ps[1].completed()
	ps[4].completed()
	c.Silent(30 * time.Millisecond)
	ps[0].completed()
	for range 1 + 2 + 3 {
		c.OK()
	}
	c.Silent(30 * time.Millisecond)
	if got := to.published.Load(); got != 3 {
		t.Errorf("%d counted as published, want the 3 that were answered", got)
	}
	ps[3].completed()
	c.Fatal("E_PUB_FAILED PUB failed no room")
}

// Completions race with the connection's reader and with each other. No answer is lost, and the order is kept.
func TestAnswersUnderRace(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Send("NOP\n")
	server := n.onlyConn(t)
	const count = 2000
	lanes := make([]chan *pending, 4)
	var wg sync.WaitGroup
	for i := range lanes {
		lanes[i] = make(chan *pending, count)
		wg.Go(func() {
			for p := range lanes[i] {
				p.completed()
				if i == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	for i := range count {
		p := newPending(server, command.VerbPub)
		p.frame, p.count = appendFrame(nil, frameResponse, fmt.Sprint(i)), 1
		server.answers.push(p)
		lanes[i%len(lanes)] <- p
	}
	for _, l := range lanes {
		close(l)
	}
	for i := range count {
		c.Expect(frameResponse, fmt.Sprint(i))
	}
	wg.Wait()
}

// Frames from many goroutines reach a client that reads slowly. Each frame arrives whole, and those of one goroutine in
// order.
func TestOutputUnderRace(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Conn.SetReadBuffer(16 << 10)
	c.Send("NOP\n")
	server := n.onlyConn(t)
	const writers, each = 4, 500
	for w := range writers {
		go func() {
			for i := range each {
				frame := appendFrame(nil, frameResponse, fmt.Sprintf("%d %d %s", w, i, strings.Repeat("x", (w+i)%3000)))
				server.out.append(frame)
				server.out.flush()
			}
		}()
	}
	next := make([]int, writers)
	for range writers * each {
		_, d, err := c.Frame(nsqtest.Patience)
		if err != nil {
			t.Fatal(err)
		}
		var w, i int
		if _, err := fmt.Sscanf(string(d), "%d %d", &w, &i); err != nil || next[w] != i {
			t.Fatalf("got %.40q, want frame %d of writer %d (%v)", d, next[w], w, err)
		}
		next[w]++
		if i%100 == 0 {
			runtime.Gosched()
		}
	}
	nsqtest.Eventually(t, "the output to settle", server.out.allSent)
}

func TestChunkGrows(t *testing.T) {
	var c chunk
	var want []byte
	for i := range 5000 {
		part := bytes.Repeat([]byte{byte(i)}, i%300+1)
		c.grow(len(part))
		c.p = append(c.p, part...)
		want = append(want, part...)
		if &c.p[0] != &c.k.b[0] {
			t.Fatal("the frames left their block")
		}
	}
	if !bytes.Equal(c.p, want) {
		t.Fatal("bytes lost")
	}
	c.free()
}

// A pipelined PUB costs less than a tenth of an allocation, from the socket to the answer.
func TestPublishAllocations(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	const count = 1000
	in := []byte(strings.Repeat(nsqtest.Pub("t", strings.Repeat("x", 100)), count))
	out := make([]byte, count*okFrameBytes)
	round := func() {
		if _, err := c.Conn.Write(in); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(out); {
			k, err := c.Conn.Read(out[got:])
			if err != nil {
				t.Fatal(err)
			}
			got += k
		}
		for b := out; len(b) > 0; b = b[okFrameBytes:] {
			if binary.BigEndian.Uint32(b) != 6 || string(b[8:10]) != "OK" {
				t.Fatalf("frame %q", b[:okFrameBytes])
			}
		}
	}
	for range 20 { // fills the pools
		round()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const rounds = 20
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	if per := float64(after.Mallocs-before.Mallocs) / (rounds * count); per > 0.1 {
		t.Errorf("%.3f allocations per message", per)
	}
}

// A client that waits for one answer, which comes alone, gets it from the goroutine that completes the Put. All other
// answers are left to the flusher, which sends those of one commit together.
func TestLoneAnswerNeedsNoFlusher(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Send("NOP\n")
	server := n.onlyConn(t)
	f := server.srv.opts.Answers
	n.e.HoldAnswers(nil) // the test holds and releases
	for _, o := range []struct {
		alone, lone, atOnce bool
		err                 error
	}{
		{alone: true, lone: true, atOnce: true},
		{alone: false, lone: true}, // the reader may have more to say
		{alone: true, lone: false},
		{alone: true, lone: true, err: errors.New("no room")}, // refused with locks held
	} {
		p := newPending(server, command.VerbMpub)
		p.to, p.count = &target{name: "t"}, 1
		p.put.Alone, p.put.Lone, p.put.Err = o.alone, o.lone, o.err
		server.answers.push(p)
		f.Hold() // the flusher sends nothing that is handed to it
		p.completed()
		if server.answers.idle() != o.atOnce {
			t.Errorf("%+v: answered at once: %v", o, server.answers.idle())
		}
		f.Release()
		if !server.answers.idle() {
			t.Errorf("%+v: not answered", o)
		}
	}
	for range 3 {
		c.OK()
	}
	c.Expect(frameError, "E_MPUB_FAILED MPUB failed no room")
}
