package channel_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock/internal/node/channel"
	"penstock/internal/node/message"
	"penstock/segment"
	"penstock/tests/support/seedtest"
)

// Whatever headers a message has, there is room for those of a dead letter, and its key stays.
func TestWithRoom(t *testing.T) {
	for _, n := range []int{1, message.MaxHeaderCount, segment.MaxHeaderCount} {
		for _, key := range []int{0, n / 2, n - 1} {
			hs := make([]message.Header, n)
			for i := range hs {
				hs[i] = channel.NewHeader(fmt.Sprint("h", i), "")
			}
			hs[key] = channel.NewHeader(message.KeyHeader, "k")
			kept := channel.WithRoom(hs)
			has := false
			for _, h := range kept {
				has = has || string(h.Key) == message.KeyHeader && string(h.Value) == "k"
			}
			if !has || len(kept) != min(n, message.MaxHeaderCount) {
				t.Errorf("of %d headers %d are kept, with the key at %d: %v", n, len(kept), key, has)
			}
		}
	}
}

// Whatever headers a message has, its dead letter has as many as a message may have, and the key.
func TestWithRoomRandom(t *testing.T) {
	for seed := range seedtest.Each(t, 500, 100) {
		rng := rand.New(rand.NewPCG(seed, 53))
		hs := make([]message.Header, segment.MaxHeaderCount-rng.IntN(segment.MaxHeaderCount)%(1+rng.IntN(200)))
		key, at := "", len(hs)-1-rng.IntN(12)
		for i := range hs {
			name, value := fmt.Sprint("h", rng.IntN(9)), fmt.Sprint(i)
			if i == at || rng.IntN(500) == 0 {
				if name = message.KeyHeader; key == "" {
					key = value // the first one counts
				}
			}
			hs[i] = channel.NewHeader(name, value)
		}
		kept, has := channel.WithRoom(hs), ""
		for _, h := range kept {
			if string(h.Key) == message.KeyHeader && has == "" {
				has = string(h.Value)
			}
		}
		if has != key || len(kept) != min(len(hs), message.MaxHeaderCount) {
			t.Fatalf("seed %d: of %d headers %d are kept; the key was %q and is %q", seed, len(hs), len(kept), key, has)
		}
	}
}
