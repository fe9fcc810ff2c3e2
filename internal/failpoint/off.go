//go:build !failpoint

package failpoint

// On says whether this program has failpoints.
const On = false

// Hit does nothing in the product, where it is inlined to nothing.
func Hit(string) error { return nil }

// Pass does nothing in the product.
func Pass(string) {}
