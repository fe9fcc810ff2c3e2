package topic

import (
	"log/slog"
	"testing"

	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/segment/aio"
)

// A leader does not wait for answers of other nodes if the question belongs to a feature level that is not in force.
//
// F3.
func TestNoFenceBelowItsLevel(t *testing.T) {
	h := platform.NewMachine()
	store := partition.New(partition.Options{
		Host: h, Log: slog.New(slog.DiscardHandler), Clock: clock.New(h.Wall, h.Mono),
		Counters: new(partition.Counters), Pulse: new(aio.Pulse),
	})
	store.SetFeature(datadir.FirstLevel)
	one := &Topic{env: NewShared(Env{Store: store})}
	one.list.Store(&[]*partition.Partition{store.NewPartition(one.OfPartitions(), 0)})
	if ms := (channelTopic{one}).FenceMs(0, 2); ms != 0 {
		t.Errorf("a leader waits %d ms for nodes that know of no fence", ms)
	}
}
