package partition

import (
	"testing"

	"penstock/replicate"
	"penstock/tests/support/faultaio"
)

// While a read hangs, further requests of the machine add no goroutine and no memory: only the newest of them is read
// afterwards. A repair does not wait behind that read.
//
// F6.
func TestOneReaderForEachReplica(t *testing.T) {
	s := runStore(t, faultaio.New(faultaio.Options{Seed: 1}))
	s.publish(t, 10, 100)
	r := bareReplica()
	r.pt = s.part
	r.node.readers = make(chan struct{}) // each read waits until the test receives from this channel
	ask := func(request uint64, purpose replicate.Purpose) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.readRange(&replicate.Action{Node: 2, Request: request, Purpose: purpose, Bytes: 1 << 20, Count: 5})
	}
	next := func() *rangeAsk {
		r.mu.Lock()
		defer r.mu.Unlock()
		if rr := r.reading[readerKey{2, replicate.ReadCatchUp}]; rr != nil {
			return rr.next
		}
		return nil
	}
	allRead := func() {
		r.await(func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.reading) == 0
		})
	}

	for request := range uint64(20) {
		ask(request, replicate.ReadCatchUp)
	}
	if a := next(); a == nil || a.request != 19 {
		t.Fatalf("what is read next: %+v", a)
	}
	for range 2 {
		<-r.node.readers
		r.node.readers <- struct{}{}
	}
	allRead()
	select {
	case <-r.node.readers:
		t.Error("a read that is not wanted any more is made")
	default:
	}

	r.node.readers = make(chan struct{}, 1)
	r.node.readers <- struct{}{} // no read begins
	ask(20, replicate.ReadCatchUp)
	ask(1, replicate.ReadRepair)
	if a := next(); a != nil || len(r.reading) != 2 {
		t.Errorf("a repair waits behind another read: %+v, %d readers", a, len(r.reading))
	}
	<-r.node.readers
	allRead()
	if a := next(); a != nil || r.read.out != nil {
		t.Errorf("it is to be read: %+v; it is held: %v", a, r.read.out != nil)
	}
}
