package load

import (
	"fmt"
	"math/rand/v2"
)

const (
	// bodiesBytes is about how much a run's bodies have together. They vary, because a batch of equal bodies would
	// compress to nothing.
	bodiesBytes    = 4 << 20
	maxBodiesCount = 1 << 15
)

// bodies are what a native run publishes, over and over, the same in every run.
type bodies struct{ all [][]byte }

func newBodies(cfg *Config) *bodies {
	rng := rand.New(rand.NewPCG(1, uint64(cfg.SizeBytes)))
	b := &bodies{}
	for range min(max(bodiesBytes/cfg.SizeBytes, 1), maxBodiesCount) {
		one := make([]byte, 0, cfg.SizeBytes)
		if cfg.JSON {
			one = appendJSON(one, rng, cfg.SizeBytes)
		}
		b.all = append(b.all, appendRandom(one, rng, cfg.SizeBytes))
	}
	return b
}

func (b *bodies) next(i int) []byte { return b.all[i%len(b.all)] }

// appendRandom fills dst to size bytes with printable bytes that do not compress well.
func appendRandom(dst []byte, rng *rand.Rand, size int) []byte {
	for len(dst) < size {
		dst = append(dst, byte('!'+rng.IntN('~'-'!')))
	}
	return dst
}

var (
	countries = []string{"DE", "FR", "US", "JP"}
	goods     = []string{"blue", "cotton", "large", "shirt", "kettle", "steel", "lamp", "oak", "table", "small", "chair"}
)

// appendJSON appends an order as a shop might publish it, with as many lines as fit into size bytes.
func appendJSON(dst []byte, rng *rand.Rand, size int) []byte {
	word := func(of []string) string { return of[rng.IntN(len(of))] }
	dst = fmt.Appendf(dst, `{"order_id":"%016x","customer":{"id":%d,"country":"%s"},`, rng.Uint64(), rng.IntN(1e6),
		word(countries))
	dst = fmt.Appendf(dst, `"placed_at":"2026-01-%02dT%02d:%02d:%02dZ","lines":[`, 1+rng.IntN(28), rng.IntN(24),
		rng.IntN(60), rng.IntN(60))
	for n := 0; ; n++ {
		line := fmt.Sprintf(`{"sku":"%08x","name":"%s %s %s","quantity":%d,"price_cents":%d,"currency":"EUR"}`,
			rng.Uint32(), word(goods), word(goods), word(goods), 1+rng.IntN(9), rng.IntN(100_000))
		if len(dst)+len(line)+4 > size {
			break
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, line...)
	}
	if dst = append(dst, "]}"...); len(dst) > size {
		return dst[:size] // too small for an order
	}
	for len(dst) < size {
		dst = append(dst, ' ')
	}
	return dst
}
