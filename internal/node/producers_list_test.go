package node_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// openNames opens so many names of an owner in t/0, and returns the errors.
func openNames(topic *node.Topic, owner, prefix string, count int) (refused []error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	next := make(chan string)
	for range 64 {
		all.Go(func() {
			for name := range next {
				if _, err := topic.OpenProducer(ctxBg, 0, node.OwnedName(owner, name)); err != nil {
					mu.Lock()
					refused = append(refused, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range count {
		next <- fmt.Sprint(prefix, i)
	}
	close(next)
	all.Wait()
	return refused
}

// One owner cannot take all names of a partition: at its share it is refused, with the value and the limit, and others
// are not. A name that is removed makes room, and whoever used it is told so.
func TestOwnersHaveAShareOfTheNames(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ann, bob := node.ProducerOwner("ann"), node.ProducerOwner("bob")
	refused := openNames(topic, ann, "a", fold.MaxOwnedProducers+10)
	if len(refused) != 10 {
		t.Fatalf("%d of %d names were refused", len(refused), fold.MaxOwnedProducers+10)
	}
	for _, part := range []string{"1025", "1024", "of this token", "penstock producer remove"} {
		if !errors.Is(refused[0], errs.ErrTooManyProducers) || !strings.Contains(refused[0].Error(), part) {
			t.Errorf("the refusal does not name %q: %v", part, refused[0])
		}
	}
	if refused := openNames(topic, bob, "b", 3); len(refused) != 0 {
		t.Errorf("another owner: %v", refused[0])
	}
	p, err := topic.OpenProducer(ctxBg, 0, node.OwnedName(bob, "b1"))
	if err != nil {
		t.Fatal(err)
	}
	if got := <-send(topic, sealed(t, p, "p", 0, 2)); got.err != nil {
		t.Fatal(got.err)
	}
	openProducer(t, topic, "")
	list, err := topic.Producers(ctxBg, "b1")
	if err != nil || len(list.Producers) != 1 || list.Nameless != 1 || list.More {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list.Producers[0]; got.Owner != bob || got.Epoch != 2 || got.Sequence != 2 || got.Tenure != p.Tenure ||
		got.Used.IsZero() {
		t.Errorf("%+v", got)
	}
	if n, err := topic.RemoveProducer(ctxBg, "b1"); n != 1 || err != nil {
		t.Fatalf("%d removed: %v", n, err)
	}
	if got := <-send(topic, sealed(t, p, "p", 2, 1)); !errors.Is(got.err, errs.ErrUnknownProducer) {
		t.Errorf("a batch of a producer that was removed: %+v", got)
	}
	if n, err := topic.RemoveProducer(ctxBg, "b1"); n != 0 || !errors.Is(err, errs.ErrNoProducer) {
		t.Errorf("removed again: %d, %v", n, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Crash(3))
	topic = topicOf(t, e, "t")
	if all, err := topic.Producers(ctxBg, ""); err != nil || len(all.Producers) != fold.MaxOwnedProducers+2 {
		t.Errorf("after a restart %d are known: %v", len(all.Producers), err)
	}
	known := ""
	for range 2 {
		all, _ := topic.Producers(ctxBg, "")
		known = all.Producers[0].Name
		if _, err := topic.OpenProducer(ctxBg, 0, node.OwnedName(ann, known)); err != nil {
			t.Errorf("a known name of an owner at its share: %v", err)
		}
	}
	if refused := openNames(topic, ann, "new", 1); len(refused) != 1 {
		t.Error("after a restart the share is not what it was")
	}
	if _, err := topic.RemoveProducer(ctxBg, known); err != nil {
		t.Error(err)
	}
	if refused := openNames(topic, ann, "new", 2); len(refused) != 1 {
		t.Errorf("a name that was removed makes room for one: %v", refused)
	}
}

// A name is listed and removed in all partitions, through any node, and stays removed when leaders change.
func TestClusterRemoveProducer(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 4)
	tc.awaitLevel()
	ann := node.ProducerOwner("ann")
	from := tc.running()[0]
	for n := range 4 {
		for _, name := range []string{"p", "q\n"} {
			tc.eventually("the producer is opened", func() bool {
				_, err := tc.topic(from, "t").OpenNamed(ctxBg, n, node.OwnedName(ann, name))
				return err == nil
			})
		}
	}
	for _, m := range tc.running() {
		list, err := tc.topic(m, "t").Producers(ctxBg, "")
		if err != nil || len(list.Producers) != 8 || list.Producers[7].Name != "p" || list.Producers[7].Partition != 3 {
			t.Errorf("%+v, %v", list, err)
		}
	}
	last := tc.running()[2]
	if n, err := tc.topic(last, "t").RemoveProducer(ctxBg, `"q\n"`); n != 4 || err != nil {
		t.Errorf("%d were removed: %v", n, err)
	}
	tc.kill(tc.leader("t", 0))
	tc.eventually("the list is as it was before the leader ended", func() bool {
		list, err := tc.topic(tc.running()[0], "t").Producers(ctxBg, "")
		if err == nil && len(list.Producers) != 4 {
			t.Fatalf("%+v", list)
		}
		return err == nil
	})
}
