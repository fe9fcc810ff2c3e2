package partition

import (
	"testing"

	"penstock/internal/node/platform"
)

// The ids of producers have a random part.
func TestProducerSecret(t *testing.T) {
	c := &committer{store: &Store{host: platform.NewMachine()}}
	if a, b := c.secret(), c.secret(); a == b || a == 0 {
		t.Errorf("%#x, then %#x", a, b)
	}
}
