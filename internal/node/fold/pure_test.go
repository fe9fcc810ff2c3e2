package fold

import (
	"testing"

	"penstock/tests/support/puretest"
)

func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports: []string{
			"cmp", "encoding/binary", "errors", "fmt", "hash/fnv", "math/bits", "path", "regexp", "slices", "strconv",
			"strings",
			"penstock/batch", "penstock/internal/settings", "penstock/segment",
		},
		Maps: true, MinFiles: 10,
	})
}
