package message

import (
	"fmt"
	"math"
	"time"

	"penstock/internal/node/errs"
)

const (
	// MinMsgTimeout is the shortest time after which a message that nobody has finished is delivered again. Timeouts are
	// whole milliseconds.
	MinMsgTimeout = time.Millisecond
	// MaxMaxMsgTimeout bounds Options.MaxMsgTimeout: nodes tell each other timeouts as 32 bits of milliseconds.
	MaxMaxMsgTimeout = math.MaxUint32 * time.Millisecond
)

// MsgTimeout judges the timeout that a consumer asks for, on whatever way it subscribes: 0 is usual, more than most is
// most, and a fraction of a millisecond is dropped. It returns ErrOptions for less than MinMsgTimeout.
func MsgTimeout(asked, usual, most time.Duration) (time.Duration, error) {
	if asked == 0 {
		asked = usual
	}
	if asked < MinMsgTimeout {
		return 0, fmt.Errorf("%w: MsgTimeout is %v; it is at least %v, or 0 for the usual one, %v", errs.ErrOptions, asked,
			MinMsgTimeout, usual)
	}
	return min(asked, most).Truncate(MinMsgTimeout), nil
}
