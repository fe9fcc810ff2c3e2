package patience

import (
	"os"
	"time"
)

// Variable is the environment variable that shortens the wait where tests are expected to fail (tools/mutants).
const Variable = "TEST_PATIENCE"

// Or returns the time that Variable gives, or else usual, which should be long enough for a much busier machine.
func Or(usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv(Variable)); err == nil {
		return d
	}
	return usual
}
