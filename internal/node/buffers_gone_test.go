package node_test

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/segment/aio"
)

// countedDisk counts how often its queue is woken.
type countedDisk struct {
	aio.Disk
	wakes atomic.Int64
}

func (d *countedDisk) NewQueue(o aio.QueueOptions) (aio.Queue, error) {
	q, err := d.Disk.NewQueue(o)
	return &countedQueue{q, d}, err
}

type countedQueue struct {
	aio.Queue
	disk *countedDisk
}

func (q *countedQueue) Wake() {
	q.disk.wakes.Add(1)
	q.Queue.Wake()
}

// A committer that finds no free buffer gives back what it took from the inboxes, and sleeps until a buffer is free: to
// give it back must not wake it, however much it is.
func TestNoBuffersNoWork(t *testing.T) {
	d := &countedDisk{Disk: newDisk()}
	e := openOnDisk(t, d)
	topic := topicOf(t, e, "t")
	publish(t, topic, "first")
	release := node.TakeBuffers(e)
	var waiting []chan result
	stalls := e.Storage().StallsBuffer
	body := string(bytes.Repeat([]byte{'x'}, 16<<10))
	// 2 MiB: more than what is told the committer of while a group is on the disk; and the open buffer has room for
	// some.
	for range 128 {
		done, err := submit(topic, time.Now().Add(patience), body)
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, done)
	}
	eventually(t, "the commit log waits for a buffer", func() bool { return e.Storage().StallsBuffer > stalls })
	before := d.wakes.Load()
	<-time.After(50 * time.Millisecond)
	if n := d.wakes.Load() - before; n > 20 {
		t.Errorf("the committer was woken %d times while nothing changed", n)
	}
	release()
	for _, done := range waiting {
		if r := answer(t, done); r.err != nil {
			t.Fatal(r.err)
		}
	}
}
