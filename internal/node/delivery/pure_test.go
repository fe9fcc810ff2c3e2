package delivery

import (
	"testing"

	"penstock/tests/support/puretest"
)

func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports: []string{
			"cmp", "errors", "math/bits", "slices", "strconv",
			"penstock/batch", "penstock/internal/node/fold", "penstock/segment",
		},
		Maps: true, MinFiles: 10,
	})
}
