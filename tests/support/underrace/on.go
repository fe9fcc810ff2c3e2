//go:build race

package underrace

const (
	// Enabled says whether the race detector watches.
	Enabled = true
	// Stride is how far a test with one goroutine goes in a row of alike cases: not to each of them.
	Stride = 11
)
