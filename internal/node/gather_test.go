package node_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
)

// All puts that arrive while a group is on the disk become one group, for whatever partitions they are and however they
// arrived. A committer that looked early and took only some of them would leave the others for a third flush.
func TestWaitingPutsShareAGroup(t *testing.T) {
	const rounds, topics = 10, 40
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { // a new file would begin with a write of its own
		o.CommitFileBytes, o.CommitLiveBytes = 4<<20, 16<<20
	})
	var ts []*node.Topic
	for i := range topics {
		ts = append(ts, topicOf(t, e, fmt.Sprintf("t%d", i)))
		publish(t, ts[i], "first") // the start of its epoch is in the log
	}
	for range rounds {
		before := e.Storage().Groups
		_, release := holdCommits(t, disk)
		var waiting []chan result
		put := func(topic *node.Topic) {
			done, err := submit(topic, time.Time{}, "m")
			if err != nil {
				t.Fatal(err)
			}
			waiting = append(waiting, done)
		}
		put(ts[0])
		eventually(t, "its group is on its way", func() bool {
			begun := e.Storage().Groups == before+1
			if !begun && disk.Blocked() > 0 {
				disk.ReleaseHeld() // a mark, which the idle log writes, came first
			}
			return begun && disk.Blocked() > 0
		})
		put(ts[0])
		put(ts[1])
		disk.ReleaseHeld() // only that group: the next one hangs, too
		eventually(t, "a second group is on its way", func() bool { return e.Storage().Groups == before+2 })
		for _, topic := range ts {
			put(topic)
		}
		release()
		for _, done := range waiting {
			if r := answer(t, done); r.err != nil {
				t.Fatal(r.err)
			}
		}
		if n := e.Storage().Groups - before; n != 3 {
			t.Fatalf("%d puts that came while a group was on the disk took %d groups, want 1", topics, n-2)
		}
	}
}

// The committer is not woken while a group is on the disk, so a put that arrives just when the write ends must be seen
// nevertheless. A put that is overlooked would wait until another one arrives.
func TestNoPutIsForgotten(t *testing.T) {
	const producers, puts = 3, 3000
	e := openWith(t, inDir(fastDir(t)))
	var ts []*node.Topic
	for i := range 4 {
		ts = append(ts, topicOf(t, e, fmt.Sprintf("t%d", i)))
	}
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range puts {
				ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
				_, err := ts[(i*(p+1))%len(ts)].PublishMessage(ctx, node.Outgoing{Body: []byte("x")})
				cancel()
				if err != nil {
					t.Errorf("producer %d, put %d: %v", p, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
