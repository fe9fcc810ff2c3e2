package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/engine"
)

// Exactly MaxTopics topics can be made, however many are made at a time. The next one is refused.
func TestMaxTopics(t *testing.T) {
	t.Parallel()
	const most = 30
	e := openOnDisk(t, newDisk(), func(o *engine.Options) { o.MaxTopics = most })
	var readers sync.WaitGroup
	var over atomic.Bool
	for range 4 { // they keep a creation that ends waiting for the lock
		readers.Go(func() {
			for !over.Load() {
				_, _ = e.LookupTopic("t0")
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
		if _, err := e.CreateTopic(t.Context(), "more", 1); !errors.Is(err, engine.ErrTooManyTopics) {
			t.Errorf("one more than MaxTopics: %v", err)
		}
		for i := range most {
			if err := e.DeleteTopic(t.Context(), fmt.Sprint("t", i)); err != nil {
				t.Fatalf("round %d, topic %d: %v", round, i, err)
			}
		}
	}
}
