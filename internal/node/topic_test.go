package node_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// Exactly MaxTopics topics can be made, however many are made at a time. The next one is refused.
func TestMaxTopics(t *testing.T) {
	t.Parallel()
	const most = 30
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxTopics = most })
	var readers sync.WaitGroup
	var over atomic.Bool
	for range 4 { // they keep a creation that ends waiting for the lock
		readers.Go(func() {
			for !over.Load() {
				_, _ = e.Catalog().LookupTopic("t0")
			}
		})
	}
	defer readers.Wait()
	defer over.Store(true)
	for round := range 2 {
		var all sync.WaitGroup
		var next atomic.Int64
		for range 16 {
			all.Go(func() { // a check comes while another creation ends
				for i := next.Add(1) - 1; i < most; i = next.Add(1) - 1 {
					if _, err := e.CreateTopic(t.Context(), fmt.Sprint("t", i), 1); err != nil {
						t.Errorf("topic %d of %d: %v", i, most, err)
					}
				}
			})
		}
		all.Wait()
		if _, err := e.CreateTopic(t.Context(), "more", 1); !errors.Is(err, errs.ErrTooManyTopics) {
			t.Errorf("one more than MaxTopics: %v", err)
		}
		for i := range most {
			if err := e.DeleteTopic(t.Context(), fmt.Sprint("t", i)); err != nil {
				t.Fatalf("round %d, topic %d: %v", round, i, err)
			}
		}
	}
}

// The partitions of a node are counted, of all topics together: through no call come more about than MaxPartitions, the
// refusal names value, limit and setting and makes nothing, and what was deleted makes room.
func TestMaxPartitions(t *testing.T) {
	t.Parallel()
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxPartitions = 10 })
	counted := func(want int64) {
		t.Helper()
		if s := e.Storage(); s.ListedPartitions != want || s.PartitionLimit != 10 {
			t.Errorf("%d of %d partitions are counted, want %d", s.ListedPartitions, s.PartitionLimit, want)
		}
	}
	refused := func(what string, n int, err error) {
		t.Helper()
		want := fmt.Sprintf("is %d, and at most 10 is allowed: see the node's setting max-partitions", n)
		if !errors.Is(err, errs.ErrTooManyPartitions) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	a, err := e.CreateTopic(t.Context(), "a", 6)
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.CreateTopic(t.Context(), "huge", node.MaxPartitions)
	refused("65,536 partitions", 6+node.MaxPartitions, err)
	_, err = e.CreateTopic(t.Context(), "b", 5)
	refused("one too many", 11, err)
	if _, ok := e.Catalog().LookupTopic("b"); ok {
		t.Error("a refused topic exists")
	}
	set := a.Settings()
	set.Partitions = 11
	_, err = a.ConfigureAs(t.Context(), "", set)
	refused("growth", 11, err)
	if err := a.CheckPartitions(t.Context(), 11); a.Partitions() != 6 {
		t.Error("it has grown")
	} else {
		refused("a question about growth", 11, err)
	}
	counted(6)
	set.Partitions = 9
	if _, err = a.ConfigureAs(t.Context(), "", set); err != nil {
		t.Fatal(err)
	}
	counted(9)
	var all sync.WaitGroup
	var made atomic.Int64
	for i := range 8 { // at the same time
		all.Go(func() {
			if _, err := e.CreateTopic(t.Context(), fmt.Sprint("t", i), 1); err == nil {
				made.Add(1)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("%d topics were made where one had room", made.Load())
	}
	counted(10)
	if err := e.DeleteTopic(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	counted(1)
	if _, err = e.CreateTopic(t.Context(), "b", 9); err != nil {
		t.Error(err)
	}
	counted(10)
}
