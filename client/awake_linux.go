package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// awake is a clock that never steps. It goes on while the machine is suspended.
func awake() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return sinceStart()
	}
	return time.Duration(t.Nano())
}
