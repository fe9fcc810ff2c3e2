package workload

import (
	"fmt"
	"sync"
)

// value names a message.
type value struct {
	client string
	seq    uint64
}

// tally knows what is still to come. It is less than the checker: only enough to see when to stop waiting.
type tally struct {
	mu       sync.Mutex
	sent     uint64
	begun    map[value]uint64 // in what order values were sent, while their answer is open
	acked    []ackedValue
	channels map[string]*tallyChannel
}

type ackedValue struct {
	value
	sent uint64
}

// tallyChannel is what a channel got.
type tallyChannel struct {
	from uint64 // values sent before are not owed
	got  map[value]bool
	next int // below: everything that is owed came
}

func (t *tally) channel(name string) *tallyChannel {
	c := t.channels[name]
	if c == nil {
		if t.channels == nil {
			t.channels = map[string]*tallyChannel{}
		}
		c = &tallyChannel{from: ^uint64(0), got: map[value]bool{}}
		t.channels[name] = c
	}
	return c
}

// exists says that a channel was made: from now on, or for the first one from the beginning, it is owed everything.
func (t *tally) exists(name string, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.channel(name)
	if first {
		c.from = 0
	}
	c.from = min(c.from, t.sent)
}

func (t *tally) send(client string, seq, count uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun == nil {
		t.begun = map[value]uint64{}
	}
	for i := range count {
		t.begun[value{client, seq + i}] = t.sent
	}
	t.sent++
}

func (t *tally) answer(client string, seq, count uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range count {
		v := value{client, seq + i}
		if ok {
			t.acked = append(t.acked, ackedValue{v, t.begun[v]})
		}
		delete(t.begun, v)
	}
}

func (t *tally) deliver(channel, client string, seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.channel(channel).got[value{client, seq}] = true
}

// missing is empty when everything came.
func (t *tally) missing() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, c := range t.channels {
		for c.next < len(t.acked) && (t.acked[c.next].sent < c.from || c.got[t.acked[c.next].value]) {
			c.next++
		}
		if c.next < len(t.acked) {
			v := t.acked[c.next]
			return fmt.Sprintf("channel %s still waits for %s/%d, and perhaps more", name, v.client, v.seq)
		}
	}
	return ""
}
