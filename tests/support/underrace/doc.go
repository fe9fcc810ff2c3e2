// Package underrace tells tests whether the race detector watches them. It makes them ten times slower, lets pools drop
// values at random, and learns nothing from a test with one goroutine. It imports nothing.
package underrace
