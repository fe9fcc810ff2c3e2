package netio

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// client is an Output on a real socket, and the other end of that socket.
type client struct {
	place     Place
	fd, there int

	mu       sync.Mutex
	due      []byte // answers that Collect has not seen
	unsent   []byte
	lent     int // bytes
	together int // of the last Collect
	lends    int
	flushes  int
	err      error // of GiveBack
}

func newClient(t testing.TB) *client {
	c := new(client)
	c.fd, c.there = sockets(t)
	c.place.Output = c
	return c
}

func (c *client) answer(f *Flusher, text string) {
	c.mu.Lock()
	c.due = append(c.due, text...)
	c.mu.Unlock()
	f.Add(&c.place)
}

func (c *client) Collect(together int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.together = together
	c.unsent, c.due = append(c.unsent, c.due...), c.due[:0]
}

func (c *client) Lend() (fd int, data []byte, left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lent > 0 || len(c.unsent) == 0 {
		return 0, nil, false
	}
	c.lent = len(c.unsent)
	c.lends++
	return c.fd, c.unsent, false
}

func (c *client) GiveBack(n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	more := len(c.unsent) > c.lent && n == c.lent
	c.lent, c.err = 0, err
	if c.unsent = c.unsent[n:]; more && err == nil {
		c.write()
	}
}

func (c *client) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flushes++; c.lent == 0 {
		c.write()
	}
}

func (c *client) write() {
	if n, err := unix.Write(c.fd, c.unsent); err == nil {
		c.unsent = c.unsent[n:]
	}
}

// got waits for text at the other end.
func (c *client) got(t testing.TB, text string) {
	t.Helper()
	p := make([]byte, len(text))
	for n := 0; n < len(p); {
		m, err := unix.Read(c.there, p[n:])
		if err == syscall.EAGAIN {
			fds := []unix.PollFd{{Fd: int32(c.there), Events: unix.POLLIN}}
			if ready, err := unix.Poll(fds, 20_000); ready == 0 && err == nil {
				t.Fatalf("%q came, want %q", p[:n], text)
			}
			continue
		}
		if err != nil || m == 0 {
			t.Fatalf("%q came, want %q: %v", p[:n], text, err)
		}
		n += m
	}
	if string(p) != text {
		t.Fatalf("%q came, want %q", p, text)
	}
}

// nothing checks that no byte is there.
func (c *client) nothing(t testing.TB) {
	t.Helper()
	var p [1]byte
	if n, err := unix.Read(c.there, p[:]); err != syscall.EAGAIN {
		t.Fatalf("%d bytes came, %v", n, err)
	}
}

// newTestFlusher starts a Flusher. It skips the test if ring is set and this machine has no io_uring.
func newTestFlusher(t testing.TB, ring bool) *Flusher {
	t.Helper()
	if ring {
		newTestSender(t)
	}
	f, err := NewFlusher(ring)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// What becomes due between Hold and Release is sent by Release, on its caller's goroutine, and nothing before. More
// clients than one system call serves each get their own answers.
func TestReleaseSendsWhatWasHeld(t *testing.T) {
	f := newTestFlusher(t, true)
	clients := make([]*client, 2*MaxSendCount+7)
	for i := range clients {
		clients[i] = newClient(t)
	}
	for round := range 3 {
		f.Hold()
		for i, c := range clients {
			c.answer(f, fmt.Sprintf("%d for %d;", round, i))
			c.answer(f, "and more;")
		}
		if len(f.wake) > 0 {
			t.Fatal("the Flusher's goroutine was woken")
		}
		for _, c := range clients {
			c.nothing(t)
		}
		f.Release()
		for i, c := range clients {
			if c.got(t, fmt.Sprintf("%d for %d;and more;", round, i)); c.together != len(clients) {
				t.Fatalf("%d were served together, want %d", c.together, len(clients))
			}
			if c.lends != round+1 || c.flushes > 0 {
				t.Fatalf("lent %d times, flushed %d times", c.lends, c.flushes)
			}
		}
	}
}

// Release serves only so many, and leaves the rest to the Flusher's goroutine.
func TestReleaseLeavesTheRest(t *testing.T) {
	f := newTestFlusher(t, true)
	clients := make([]*client, maxLoggedAnswers+3)
	f.Hold()
	for i := range clients {
		clients[i] = newClient(t)
		clients[i].answer(f, "hello")
	}
	f.Release()
	for i, c := range clients {
		c.got(t, "hello")
		if c.mu.Lock(); (c.together == maxLoggedAnswers) != (i < maxLoggedAnswers) {
			t.Errorf("client %d was served together with %d", i, c.together)
		}
		c.mu.Unlock()
	}
}

// Without Hold the Flusher's goroutine answers, and flushes a lone Output.
func TestAddWithoutHold(t *testing.T) {
	f := newTestFlusher(t, true)
	c := newClient(t)
	for range 3 {
		c.answer(f, "hello")
		c.got(t, "hello")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flushes == 0 || c.lends > 0 || c.together != 1 {
		t.Errorf("flushed %d times, lent %d times, together %d", c.flushes, c.lends, c.together)
	}
}

// Without a ring each Output is flushed, by the Flusher's goroutine also after Release.
func TestFlusherWithoutRing(t *testing.T) {
	f := newTestFlusher(t, false)
	a, b := newClient(t), newClient(t)
	f.Hold()
	a.answer(f, "a")
	b.answer(f, "b")
	f.Release()
	a.got(t, "a")
	b.got(t, "b")
	if a.lends+b.lends > 0 {
		t.Error("an output was lent")
	}
}

// A ring that breaks cuts off whom it was answering, and no others: from then on Outputs are flushed.
func TestBrokenRing(t *testing.T) {
	f := newTestFlusher(t, true)
	c := newClient(t)
	f.logged.sender.broken = fmt.Errorf("broken by the test")
	f.Hold()
	c.answer(f, "lost")
	f.Release()
	if c.err == nil {
		t.Error("the output heard of no error")
	}
	c.unsent = nil
	c.answer(f, "hello")
	c.got(t, "hello")
}

// A client that does not read gets what its socket takes; the clients before and after it in the same call get all. An
// error belongs to its own client.
func TestSlowClientHoldsUpNobody(t *testing.T) {
	f := newTestFlusher(t, true)
	first, slow, gone, last := newClient(t), newClient(t), newClient(t), newClient(t)
	_ = unix.Close(gone.there)
	large := bytes.Repeat([]byte("x"), 8<<20)
	f.Hold()
	first.answer(f, "hello")
	slow.answer(f, string(large))
	gone.answer(f, "hello")
	last.answer(f, "hello")
	f.Release()
	first.got(t, "hello")
	last.got(t, "hello")
	if sent := len(large) - len(slow.unsent); slow.err != nil || sent <= 0 || sent == len(large) {
		t.Errorf("the slow client was sent %d bytes of %d, %v", sent, len(large), slow.err)
	}
	if gone.err != syscall.EPIPE {
		t.Errorf("%v", gone.err)
	}
	f.Hold() // its socket takes nothing now, which is no failure
	slow.answer(f, "more")
	f.Release()
	if slow.err != nil {
		t.Error(slow.err)
	}
}

// Answers become due on many goroutines while the commit log's holds and releases: none is left behind.
func TestNoAnswerIsLeftBehind(t *testing.T) {
	for _, ring := range []bool{true, false} {
		t.Run(fmt.Sprintf("ring=%v", ring), func(t *testing.T) {
			f := newTestFlusher(t, ring)
			var all, log sync.WaitGroup
			end := make(chan struct{})
			log.Go(func() {
				for {
					select {
					case <-end:
						return
					default:
					}
					f.Hold()
					runtime.Gosched()
					f.Release()
					runtime.Gosched()
				}
			})
			began := time.Now()
			for i := range 16 {
				c := newClient(t)
				all.Go(func() {
					for n := 0; n < 100 && time.Since(began) < 10*time.Second; n++ {
						text := fmt.Sprintf("%d:%d;", i, n)
						c.answer(f, text)
						if n%3 == 0 {
							c.answer(f, text)
							text += text
						}
						c.got(t, text)
					}
				})
			}
			all.Wait()
			close(end)
			log.Wait()
		})
	}
}

// A place that is taken keeps its Output out of the queue: the goroutine that took it sends the answers.
func TestTakenPlace(t *testing.T) {
	f := newTestFlusher(t, true)
	c := newClient(t)
	if !c.place.Take() {
		t.Fatal("the place was taken")
	}
	f.Hold()
	c.answer(f, "hello")
	f.Release()
	c.nothing(t)
	c.place.Leave()
	c.answer(f, ", world")
	c.got(t, "hello, world")
}

func TestFlusherAllocatesNothing(t *testing.T) {
	f := newTestFlusher(t, true)
	a, b := newClient(t), newClient(t)
	p := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		f.Hold()
		for _, c := range []*client{a, b} {
			c.due = append(c.due, "hello"...)
			c.unsent = c.unsent[:0]
			f.Add(&c.place)
		}
		f.Release()
		for _, c := range []*client{a, b} {
			if n, err := unix.Read(c.there, p); err != nil || string(p[:n]) != "hello" {
				t.Fatalf("%q, %v", p[:n], err)
			}
			c.unsent = make([]byte, 0, 64)
		}
	}); n > 2 { // the two buffers of the test
		t.Errorf("%v allocations", n)
	}
}
