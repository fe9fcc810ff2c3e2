package machine

import (
	"testing"

	"penstock/tests/support/puretest"
)

func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports: []string{"cmp", "errors", "fmt", "slices", "penstock/segment"}, MinFiles: 3,
	})
}
