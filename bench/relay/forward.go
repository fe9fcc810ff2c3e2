package relay

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MaxHeldBytes bounds the packets that the forwarder keeps. If it is full, packets wait in their devices.
	MaxHeldBytes = 64 << 20

	virtioBytes    = 10 // the header in front of each packet
	maxPacketBytes = virtioBytes + 65535
	ipv4Bytes      = 20

	// maxReads bounds the packets that are taken from one device before packets that are due are looked at again.
	maxReads = 16
	// A processor that was idle wakes late, so the forwarder asks to be woken earlier than the oldest packet is due, and
	// then polls until it is due. maxAhead bounds how much earlier, and so how long it polls for each packet.
	maxAhead = 50 * time.Microsecond
)

// Stats counts what the forwarder did.
type Stats struct {
	Packets, Bytes uint64
	Dropped        uint64        // packets for nobody, or that a device refused
	LateMost       time.Duration // how much later than due a packet left
	Late           time.Duration // the sum of that
}

type counters struct{ packets, bytes, dropped, late, lateMost atomic.Int64 }

// Stats returns the counts since the last call.
func (r *Relay) Stats() Stats {
	s := &r.stats
	return Stats{
		Packets: uint64(s.packets.Swap(0)), Bytes: uint64(s.bytes.Swap(0)), Dropped: uint64(s.dropped.Swap(0)),
		Late: time.Duration(s.late.Swap(0)), LateMost: time.Duration(s.lateMost.Swap(0)),
	}
}

// held is a packet on its way. All packets take equally long, so they are due in the order in which they came.
type held struct {
	due  int64
	to   int
	at   int    // where in the ring
	data []byte // the packet there
}

// forwarder is what the thread of forward uses. Nothing else does.
type forwarder struct {
	r    *Relay
	poll []unix.PollFd
	// ring holds the packets in flight, those of queue[first:], one after another. The next one is read to next.
	ring  []byte
	next  int
	queue []held
	first int
	ahead int64 // how much earlier than due the forwarder is woken, in ns
}

// forward is the forwarder's thread. It ends when Close asks, or with the first error of a device.
func (r *Relay) forward() {
	defer close(r.ended)
	runtime.LockOSThread() // and never unlock: the thread keeps its priority and ends
	// Without the priority the relay still works, but delays packets less exactly.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	f := &forwarder{r: r, ring: make([]byte, MaxHeldBytes)}
	for _, h := range r.hosts {
		f.poll = append(f.poll, unix.PollFd{Fd: int32(h.tun), Events: unix.POLLIN})
	}
	f.poll = append(f.poll, unix.PollFd{Fd: int32(r.stop), Events: unix.POLLIN})
	for {
		f.deliver()
		if err := f.wait(); err != nil {
			r.failed = fmt.Errorf("the relay has ended, and its hosts are cut off: %w", err)
			return
		}
		if f.poll[len(r.hosts)].Revents != 0 {
			return
		}
		for i := range r.hosts {
			if f.poll[i].Revents&unix.POLLIN != 0 {
				f.take(i)
			}
		}
	}
}

// now is the kernel's monotonic clock.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// wait sleeps until a device has a packet, until the oldest packet is nearly due, or until Close asks for the end.
func (f *forwarder) wait() error {
	var timeout *unix.Timespec
	var due, left int64
	if f.first < len(f.queue) {
		due = f.queue[f.first].due - f.ahead
		left = max(due-now(), 0)
		t := unix.NsecToTimespec(left)
		timeout = &t
	}
	n, err := unix.Ppoll(f.poll, timeout, nil)
	switch {
	case err == unix.EINTR:
		for i := range f.poll {
			f.poll[i].Revents = 0
		}
		return nil
	case n == 0 && left > 0:
		f.ahead += (min(now()-due, int64(maxAhead)) - f.ahead) / 8 // a mean of how late the last sleeps ended
	}
	return err
}

// take reads packets of host i.
func (f *forwarder) take(i int) {
	for range maxReads {
		if !f.room() {
			return
		}
		n, err := unix.Read(f.r.hosts[i].tun, f.ring[f.next:f.next+maxPacketBytes])
		if err != nil || n <= 0 {
			return
		}
		packet := f.ring[f.next : f.next+n]
		to := f.r.hostOf(packet)
		if to < 0 {
			f.r.stats.dropped.Add(1)
			continue
		}
		f.queue = append(f.queue, held{due: now() + f.r.delay.Load(), to: to, at: f.next, data: packet})
		f.next += n
	}
}

// room says whether the largest packet fits at next. If it fits only at the start of the ring, room moves next there.
//
//	| in flight  next  free |    | free  oldest  in flight  next  free |    | in flight  next  free  oldest  in flight |
func (f *forwarder) room() bool {
	if f.first == len(f.queue) {
		f.queue, f.first, f.next = f.queue[:0], 0, 0
		return true
	}
	oldest := f.queue[f.first].at
	switch {
	case f.next <= oldest:
		return oldest-f.next >= maxPacketBytes
	case len(f.ring)-f.next >= maxPacketBytes:
		return true
	case oldest >= maxPacketBytes:
		f.next = 0
		return true
	}
	return false
}

// hostOf returns the host that a packet is for, or -1.
func (r *Relay) hostOf(packet []byte) int {
	if len(packet) < virtioBytes+ipv4Bytes || packet[virtioBytes]>>4 != 4 {
		return -1
	}
	to := binary.BigEndian.Uint32(packet[virtioBytes+16:])
	i := int(to&0xff) - firstAddress
	same := byte(to>>24) == r.prefix[0] && byte(to>>16) == r.prefix[1] && byte(to>>8) == r.prefix[2]
	if !same || i < 0 || i >= len(r.hosts) {
		return -1
	}
	return i
}

// deliver gives the packets that are due to their hosts.
func (f *forwarder) deliver() {
	s := &f.r.stats
	for f.first < len(f.queue) {
		p := &f.queue[f.first]
		late := now() - p.due
		if late < 0 {
			break
		}
		if _, err := unix.Write(f.r.hosts[p.to].tun, p.data); err != nil {
			s.dropped.Add(1)
		}
		s.packets.Add(1)
		s.bytes.Add(int64(len(p.data) - virtioBytes))
		s.late.Add(late)
		s.lateMost.Store(max(s.lateMost.Load(), late))
		f.first++
	}
	if f.first > maxQueued {
		f.queue = append(f.queue[:0], f.queue[f.first:]...)
		f.first = 0
	}
}

// maxQueued bounds the entries of queue that belong to packets that were delivered.
const maxQueued = 1 << 12
