package pull

import (
	"testing"

	"penstock/tests/support/puretest"
)

func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports:  []string{"maps", "penstock/internal/node/message"},
		Maps:     true,
		Foreign:  map[string][]string{"message": {"ID", "Header", "Delivery", "Deadline", "HeldDelivery"}},
		MinFiles: 1,
	})
}
