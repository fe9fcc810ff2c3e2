package workload

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// Only what the engine says clearly is a certain failure. What is called one by mistake becomes a false accusation.
func TestDefinite(t *testing.T) {
	for text, want := range map[string]bool{
		"E_BAD_TOPIC PUB topic name \"x y\" is not valid":                                     true,
		"E_INVALID cannot SUB in current state":                                               true,
		"E_PUB_FAILED PUB failed engine: the disk is full: publishing is refused, consuming":  true,
		"E_PUB_FAILED PUB failed engine: it waited too long; nothing of it was stored":        true,
		"E_PUB_FAILED PUB failed engine: the disk failed a write; this one's fate is unknown": false,
		"E_PUB_FAILED PUB failed engine: closed":                                              false,
		"":                                                                                    false,
	} {
		if definite(text) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
	if classOf(os.ErrDeadlineExceeded) != timedOut || classOf(errors.New("reset")) != broken || Ended(timedOut) ||
		!Ended(broken) {
		t.Error("the classes are mixed up")
	}
}

func TestTally(t *testing.T) {
	var y tally
	want := func(missing bool) {
		t.Helper()
		if got := y.missing(); (got != "") != missing {
			t.Fatalf("missing: %q", got)
		}
	}
	y.exists("first", true)
	y.send("p", 1, 3)
	y.answer("p", 1, 3, true)
	want(true)
	for seq := uint64(1); seq <= 3; seq++ {
		y.deliver("first", "p", seq)
	}
	want(false)
	y.send("p", 4, 1) // under way when the next channel is made: it may begin before or behind it
	y.exists("late", false)
	y.answer("p", 4, 1, true)
	y.deliver("first", "p", 4)
	want(false)
	y.send("p", 5, 1)
	y.answer("p", 5, 1, false) // owed to nobody
	y.send("p", 6, 1)
	want(false)
	y.answer("p", 6, 1, true)
	y.deliver("first", "p", 6)
	want(true)
	y.deliver("late", "p", 6)
	want(false)
	y.deliver("somebody else's", "p", 6) // a channel that was never said to exist is owed nothing
	want(false)
}

func TestPace(t *testing.T) {
	p := pace{next: time.Now(), interval: 2 * time.Millisecond}
	start := time.Now()
	for range 50 {
		if !p.wait(context.Background()) {
			t.Fatal("it stopped")
		}
	}
	if took := time.Since(start); took < 90*time.Millisecond {
		t.Errorf("50 turns of 2 ms took %v", took)
	}
	p.next = time.Now().Add(-time.Hour) // a long stop is not caught up with
	start = time.Now()
	for range 10 {
		p.wait(context.Background())
	}
	if took := time.Since(start); took < 15*time.Millisecond {
		t.Errorf("10 turns after a stop took %v", took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if p.wait(ctx) {
		t.Error("it goes on after the end")
	}
}
