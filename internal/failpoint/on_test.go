//go:build failpoint

package failpoint

import (
	"errors"
	"testing"
	"time"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		text string
		ok   bool
	}{
		{"clog/before-write=kill@1", true},
		{"clog/before-write=sleep:5ms@3", true},
		{"clog/before-write=error@2", true},
		{"clog/before-write=kill", false},
		{"clog/before-write=burn@1", false},
		{"clog/before-write=sleep:long@1", false},
		{"clog/before-write=kill@x", false},
		{"nowhere=kill@1", false},
		{"", false},
	} {
		if err := choose(c.text); (err == nil) != c.ok {
			t.Errorf("%q: %v", c.text, err)
		}
	}
}

func TestHit(t *testing.T) {
	if err := choose("clog/before-write=error@3"); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 4; n++ {
		if err := Hit("clog/before-write"); errors.Is(err, ErrHit) != (n >= 3) {
			t.Errorf("hit %d: %v", n, err)
		}
	}
	if err := Hit("clog/after-write"); err != nil {
		t.Errorf("another place: %v", err)
	}
	chosen.hits.Store(0)
	if err := choose("clog/before-write=sleep:20ms@1"); err != nil {
		t.Fatal(err)
	}
	if began := time.Now(); Hit("clog/before-write") != nil || time.Since(began) < 20*time.Millisecond {
		t.Error("it did not sleep")
	}
	defer func() {
		if recover() == nil {
			t.Error("a place without a name is one")
		}
	}()
	_ = Hit("nowhere")
}
