package absent

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node/datadir"
	"penstock/replicate"
	"penstock/segment"
)

// A leader that asks for a copy which this node does not have gets an answer at once, and one answer for a burst of
// frames. If it goes on asking, that is logged once, after a while.
func TestAbsentCopiesAreNoted(t *testing.T) {
	var a Copies
	k := question{node: 2}
	answers, told := 0, 0
	for now := time.Duration(0); now < 10*time.Second; now += 10 * time.Millisecond {
		for range 5 {
			answer, tell := a.note(k, int64(now))
			if answer {
				answers++
			}
			if tell {
				told++
				if now < patience {
					t.Errorf("it is logged after %v", now)
				}
			}
			if now == 0 && answers == 0 {
				t.Fatal("the first frame is not answered")
			}
		}
	}
	if answers != 100 || told != 1 {
		t.Errorf("answered %d times in 10 s, logged %d times", answers, told)
	}
	for n := range 3 * maxEntries {
		k.id.Partition = uint32(n)
		if a.note(k, 0); len(a.entries) > maxEntries {
			t.Fatalf("%d are remembered", len(a.entries))
		}
	}
}

// The leader of a new topic asks for copies that are not open yet. That is no fault, until it has asked for long.
func TestMissingCopyIsAFaultAfterAWhile(t *testing.T) {
	a := bare()
	probe := &replicate.Message{Kind: replicate.MsgProbe, Epoch: 1}
	ask := func() uint64 {
		a.Answer(2, segment.Identity{}, probe)
		return a.Missing.Load()
	}
	if n := ask(); n != 0 {
		t.Errorf("%d copies count as missing at the first frame", n)
	}
	a.entries[question{node: 2}].first -= int64(patience)
	if first, second := ask(), ask(); first != 1 || second != 1 {
		t.Errorf("%d, then %d copies count as missing", first, second)
	}
}

// The answer that there is no copy belongs to a feature level: an older node would take it for a damaged frame and cut
// the connection.
//
// F3.
func TestNoAnswerBelowItsLevel(t *testing.T) {
	a := bare()
	a.Answer(2, segment.Identity{}, &replicate.Message{Kind: replicate.MsgProbe, Epoch: 1})
	if a.Frames.Load() != 1 {
		t.Error("the frame is not counted")
	}
}

// bare returns Copies of a node of the first feature level, without a network: any frame that is sent fails the test.
func bare() *Copies {
	return &Copies{Env: Env{
		Log: slog.New(slog.DiscardHandler), Now: func() int64 { return int64(time.Hour) },
		Level: func() int { return datadir.FirstLevel }, Frames: new(atomic.Uint64), Missing: new(atomic.Uint64),
	}}
}
