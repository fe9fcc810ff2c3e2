package operate

import "testing"

// fileName makes no name that leaves the directory of the bundle.
func TestBundleFileNames(t *testing.T) {
	for in, want := range map[string]string{
		"n1": "n1", "../../etc": "_.._etc", "a b/c": "a_b_c", ".x": "x", "db-1.a": "db-1.a",
	} {
		if got := fileName(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
