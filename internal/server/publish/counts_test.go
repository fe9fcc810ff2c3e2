package publish

import (
	"errors"
	"fmt"
	"testing"

	"penstock/internal/node"
)

func TestReasonOf(t *testing.T) {
	for _, x := range []struct {
		err  error
		want string
	}{
		{node.ErrOverloaded, "overloaded"},
		{fmt.Errorf("topic t: %w", node.ErrQuota), "quota"},
		{node.ErrMoved, "no_leader"},
		{node.ErrNoSpace, "disk_full"},
		{node.ErrDisk, "disk"},
		{errors.Join(node.ErrUnknown, errors.New("why")), "unknown"},
		{node.ErrClosed, "closing"},
		{errors.New("something"), "other"},
	} {
		if got := reasonNames[reasonOf(x.err)]; got != x.want {
			t.Errorf("%v: %s, want %s", x.err, got, x.want)
		}
	}
}
