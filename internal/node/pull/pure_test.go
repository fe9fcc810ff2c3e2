package pull

import (
	"testing"

	"penstock/internal/puretest"
)

func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports:  []string{"maps", "penstock/internal/node/base"},
		Maps:     true,
		Foreign:  map[string][]string{"base": {"ID", "Header", "Delivery", "Deadline", "HeldDelivery"}},
		MinFiles: 1,
	})
}
