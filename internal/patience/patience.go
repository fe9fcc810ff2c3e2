// Package patience is how long tests wait for what must happen.
package patience

import (
	"os"
	"time"
)

// Variable is the environment variable that shortens it where tests are to fail (tools/mutants).
const Variable = "PENSTOCK_PATIENCE"

// Or is the patience of the environment; usual without one, long enough for a machine that is much busier.
func Or(usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv(Variable)); err == nil {
		return d
	}
	return usual
}
