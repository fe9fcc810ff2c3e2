package web

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/internal/node/errs"
)

func TestDeletions(t *testing.T) {
	var d Deletions
	now := time.Now()
	if err := d.Answer("a", now, errs.ErrNoTopic); !errors.Is(err, errs.ErrNoTopic) {
		t.Errorf("what never was: %v", err)
	}
	for i := range 2 * maxDeletionCount {
		if err := d.Answer(fmt.Sprint(i), now, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.at) > maxDeletionCount {
		t.Errorf("%d answers are remembered", len(d.at))
	}
	if err := d.Answer("a", now, errs.ErrClosed); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("another failure: %v", err)
	}
}
