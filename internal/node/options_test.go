package node_test

import (
	"errors"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// Open refuses a MaxMsgTimeout that nodes could not tell each other, in 32 bits of milliseconds.
func TestOptionsBoundMsgTimeouts(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, time.Microsecond, 50 * 24 * time.Hour} {
		o := node.Options{DataPath: t.TempDir(), MaxMsgTimeout: d}
		if e, err := node.Open(t.Context(), o); !errors.Is(err, errs.ErrOptions) {
			t.Errorf("MaxMsgTimeout %v: %v", d, err)
			if err == nil {
				_ = e.Close()
			}
		}
	}
}
