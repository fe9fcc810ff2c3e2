package channel_test

import (
	"fmt"
	"testing"

	"penstock/engine/base"
	"penstock/engine/channel"
	"penstock/segment"
)

// Whatever headers a message has, there is room for those of a dead letter, and its key stays.
func TestWithRoom(t *testing.T) {
	for _, n := range []int{1, base.MaxHeaderCount, segment.MaxHeaderCount} {
		for _, key := range []int{0, n / 2, n - 1} {
			hs := make([]base.Header, n)
			for i := range hs {
				hs[i] = channel.NewHeader(fmt.Sprint("h", i), "")
			}
			hs[key] = channel.NewHeader(base.KeyHeader, "k")
			kept := channel.WithRoom(hs)
			has := false
			for _, h := range kept {
				has = has || string(h.Key) == base.KeyHeader && string(h.Value) == "k"
			}
			if !has || len(kept) != min(n, base.MaxHeaderCount) {
				t.Errorf("of %d headers %d are kept, with the key at %d: %v", n, len(kept), key, has)
			}
		}
	}
}
