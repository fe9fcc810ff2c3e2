//go:build !linux

package client

import "time"

// awake is a clock that never steps. Whether it goes on while the machine is suspended depends on the system.
func awake() time.Duration { return sinceStart() }
