package node

import "penstock/internal/node/topic"

// SweepStores lets the channels that keep dead letters confirm everything else now, as they do from time to time.
func SweepStores(e *Engine) {
	for _, t := range e.Catalog().Topics() {
		if c, ok := t.LookupChannel(topic.RedriveChannel); ok {
			_ = c.Local().Sweep()
		}
	}
}
