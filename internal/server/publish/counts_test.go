package publish

import (
	"errors"
	"fmt"
	"testing"

	"penstock/internal/node/errs"
)

func TestReasonOf(t *testing.T) {
	for _, x := range []struct {
		err  error
		want string
	}{
		{errs.ErrOverloaded, "overloaded"},
		{fmt.Errorf("topic t: %w", errs.ErrQuota), "quota"},
		{errs.ErrMoved, "no_leader"},
		{errs.ErrNoSpace, "disk_full"},
		{errs.ErrDisk, "disk"},
		{errors.Join(errs.ErrUnknown, errors.New("why")), "unknown"},
		{errs.ErrClosed, "closing"},
		{errors.New("something"), "other"},
	} {
		if got := reasonNames[reasonOf(x.err)]; got != x.want {
			t.Errorf("%v: %s, want %s", x.err, got, x.want)
		}
	}
}
