package fanout

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/internal/node/errs"
)

// For ten seconds a deleted name is told from one that never existed. The table of names is bounded, however many are
// deleted.
func TestDeletedNamesAreRemembered(t *testing.T) {
	var names DeletedNames
	now := time.Unix(1000, 0)
	names.Add("a", now)
	for after, want := range map[time.Duration]bool{0: true, 10 * time.Second: true, 10*time.Second + 1: false} {
		var gone *GoneError
		err := names.Missing("a", now.Add(after), errs.ErrNoTopic)
		if !errors.Is(err, errs.ErrNoTopic) || errors.As(err, &gone) != want || want && gone.Ago != after {
			t.Errorf("%v after its deletion: %#v", after, err)
		}
	}
	if err := names.Missing("b", now, errs.ErrNoTopic); err != errs.ErrNoTopic {
		t.Errorf("a name that never existed: %#v", err)
	}
	for n := range 2 * maxDeletedNames {
		if names.Add(fmt.Sprint(n), now); len(names) > maxDeletedNames {
			t.Fatalf("%d names are remembered", len(names))
		}
	}
	if names.Add("late", now.Add(time.Minute)); len(names) != 1 {
		t.Errorf("%d names are remembered, one was deleted in the last ten seconds", len(names))
	}
}

// A channel is deleted if any leader deleted it. Otherwise, if some leader remembers a deletion, the channel is gone
// since the most recent one.
func TestDeletionMergesAnswers(t *testing.T) {
	gone := func(ago time.Duration) error { return NewGoneError(ago, errs.ErrNoChannel) }
	for name, c := range map[string]struct {
		leaders []error
		deleted bool
		ago     time.Duration // 0: not gone
	}{
		"deleted": {[]error{errs.ErrNoChannel, nil, gone(time.Second)}, true, 0},
		"gone": {
			[]error{gone(2 * time.Second), errs.ErrNoChannel, gone(time.Second), gone(3 * time.Second)},
			false,
			1001 * time.Millisecond,
		},
		"never was":        {[]error{errs.ErrNoChannel, errs.ErrNoChannel}, false, 0},
		"nobody has heard": {nil, false, 0},
	} {
		var d Deletion
		for _, err := range c.leaders {
			result, err := DeletionResult(err)
			if err == nil && result != nil {
				err = d.Add(result)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var g *GoneError
		err := d.Err()
		errors.As(err, &g)
		if (err == nil) != c.deleted || !c.deleted && !errors.Is(err, errs.ErrNoChannel) ||
			(g != nil) != (c.ago != 0) || g != nil && g.Ago != c.ago {
			t.Errorf("%s: %#v", name, err)
		}
	}
	if _, err := DeletionResult(errs.ErrNoQuorum); err != errs.ErrNoQuorum {
		t.Errorf("a deletion that failed is answered with %v", err)
	}
}
