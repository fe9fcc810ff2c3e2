package serve

import (
	"testing"

	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/settings"
)

// The protocols name the limits that the engine enforces: a SUB beyond max-consumers is told their number.
func TestLimitsOfTheEngineAreNamed(t *testing.T) {
	c := settings.New(pflag.NewFlagSet("", pflag.ContinueOnError))
	c.Node.Engine.MaxConsumers, c.Node.Engine.MaxMessageBytes = 7, 12345
	if o := nsqOptions(c, nil, nil); o.MaxChannelConsumers != 7 || o.MaxMessageBytes != 12345 {
		t.Errorf("%d consumers and %d bytes are named", o.MaxChannelConsumers, o.MaxMessageBytes)
	}
}
