package route

import (
	"testing"

	"penstock/tests/support/puretest"
)

func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports: []string{"cmp", "maps", "slices", "penstock/replicate", "penstock/segment"},
		Maps:    true, MinFiles: 4,
		Foreign: map[string][]string{"replicate": {"NodeID"}, "segment": {"Epoch"}, "maps": {"DeleteFunc"}},
	})
}
