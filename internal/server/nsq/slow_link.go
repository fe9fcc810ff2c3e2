package nsq

import (
	"time"

	"golang.org/x/sys/unix"
)

// A client on a slow link is alive as long as its socket takes bytes. Nothing waits for it in the output for much
// longer than outputTime: what a client is given counts as in flight, and must not time out on its way.
const (
	outputTime     = time.Second
	minOutputBytes = 16 << 10
)

// outputBound is the rule for output.bound: what the link takes in outputTime. bytes took so long to be written under
// the present bound; queued of all that was written has not left this machine yet. The bound begins low, since nobody
// knows a new link, and grows while writes are quick and leave at once.
func outputBound(bound, most, bytes int, took time.Duration, queued int) int {
	switch {
	case took >= outputTime:
		rate := int64(bytes) * int64(outputTime) / int64(took)
		return int(min(max(rate, minOutputBytes), int64(bound), int64(most)))
	case queued > bound/4:
		return bound
	}
	return min(2*bound, most)
}

// paced adapts the bound after bytes took so long to be written. The owner calls it, without mu.
func (o *output) paced(bytes int, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.short && took < outputTime {
		return
	}
	queued := 0
	o.tell(func(info *unix.TCPInfo) { queued = int(info.Notsent_bytes) })
	o.bound = outputBound(o.bound, o.most, bytes, took, queued)
	if short := o.bound < o.most; short != o.short {
		o.shorten(short)
	}
}

// tell calls f with what the kernel knows of the connection, or not at all. The caller holds mu.
func (o *output) tell(f func(*unix.TCPInfo)) {
	o.control(func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			f(info)
		}
	})
}

// shorten keeps the kernel's queue of unsent bytes short, where nothing passes what waits, until the link is known to
// be quick. The caller holds mu.
func (o *output) shorten(short bool) {
	o.short = short
	least := 0 // the system's
	if short {
		least = minOutputBytes
	}
	o.control(func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, least) })
}

// control calls f with the socket's descriptor, which stays open meanwhile, or not at all. The caller holds mu.
func (o *output) control(f func(fd int)) {
	switch {
	case o.raw != nil:
		_ = o.raw.Control(func(fd uintptr) { f(int(fd)) })
	case o.owns:
		f(o.fd)
	}
}

// acknowledged is how many bytes the client's side has acknowledged, and whether more are on their way to it. Any
// goroutine may call it, without mu.
func (o *output) acknowledged() (bytes uint64, waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tell(func(info *unix.TCPInfo) {
		bytes, waits = info.Bytes_acked, o.unsent > 0 || info.Unacked > 0 || info.Notsent_bytes > 0
	})
	return bytes, waits
}

// progress judges at intervals whether a client that says nothing takes what it is sent.
type progress struct {
	acked uint64 // bytes, when moves was called last
	still int    // calls in a row without progress
}

// moves notes that the client's side has acknowledged so many bytes. wrote says that its socket took some, too.
func (l *progress) moves(acked uint64, wrote bool) {
	l.still++
	if known := l.acked > 0; wrote || known && acked > l.acked {
		l.still = 0
	}
	l.acked = acked
}

// writeAll writes the rest of a chunk, from byte n on. It fails if the client takes none of it for a timeout, or at
// most half more: it looks twice in each. The writer goroutine calls it.
func (o *output) writeAll(w waiting, c *chunk, n int) error {
	began, from := time.Now(), n
	for l := new(progress); ; {
		err := w.nc.SetWriteDeadline(time.Now().Add(time.Duration(o.timeout.Load() / 2)))
		if err != nil {
			return err
		}
		before := n
		if len(c.held) > 0 {
			n, err = o.writeHeld(w.raw, c, n)
		} else {
			var m int
			m, err = w.nc.Write(c.p[n:])
			n += m
		}
		if err == nil {
			o.paced(n-from, time.Since(began))
		}
		if !stuck(err) {
			return err
		}
		acked, _ := o.acknowledged()
		if l.moves(acked, n > before); l.still == 2 {
			return err
		}
	}
}

// beat sends a heartbeat, ahead of everything that no owner has taken yet: it must not wait for messages. There is one
// at most, so a client that reads nothing gets no more of them.
func (o *output) beat() {
	o.mu.Lock()
	if !o.sealed && !o.beatDue {
		if o.beatDue = o.next.k != nil; o.beatDue {
			o.unsent += len(heartbeatFrame)
		} else if o.space(len(heartbeatFrame)) {
			o.next.p = append(o.next.p, heartbeatFrame...)
		}
	}
	o.mu.Unlock()
	o.flush()
}
