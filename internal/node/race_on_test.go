//go:build race

package node_test

// slower is how much more time is allowed under the race detector, which makes everything several times slower.
const slower = 10
