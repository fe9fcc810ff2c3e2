package replicate

import (
	"testing"

	"penstock/tests/support/puretest"
)

// The machines create no identities either.
func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports: []string{
			"encoding/binary", "errors", "fmt", "math", "slices", "github.com/google/uuid", "penstock/segment",
		},
		Foreign:  map[string][]string{"uuid": {"UUID"}},
		MinFiles: 10,
	})
}
