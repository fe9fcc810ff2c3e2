//go:build !race

package underrace

// What on.go says, without the race detector.
const (
	Enabled = false
	Stride  = 1
)
