package errs

import (
	"errors"
	"testing"
)

func TestLimitError(t *testing.T) {
	t.Parallel()
	gone := errors.New("not stored")
	for _, tc := range []struct {
		err  LimitError
		want string
	}{
		{
			LimitError{gone, "the size", 7, 5, "max-size", false},
			"not stored: the size is 7, and at most 5 is allowed: see the node's setting max-size",
		},
		{
			LimitError{nil, "the size", 7, 5, "quota-bytes", true},
			"the size is 7, and at most 5 is allowed: see the topic's setting quota-bytes",
		},
		{
			LimitError{nil, "the size", "7 KiB", 5, "", false},
			"the size is 7 KiB, and at most 5 is allowed, which no setting changes",
		},
	} {
		if tc.err.Error() != tc.want || tc.err.Err != nil && !errors.Is(&tc.err, gone) {
			t.Errorf("it says %q", tc.err.Error())
		}
	}
}
