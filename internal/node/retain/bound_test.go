package retain

import (
	"math/rand/v2"
	"testing"

	"penstock/segment"
)

// B39: nothing goes that a log needs which a cut may leave. A random log of bounds grows, is committed up to somewhere,
// is cut above that, begins anew; what is settled is never above what the fold says of any log that can come out of it,
// and in the end all of it is settled.
func TestConfirmedBound(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var b Bound
		log := []Needed{{}} // log[i] is the bound of the log that ends at i; the first is an empty one's
		committed := 0
		if b.Advance(segment.Offset(5)) != (Needed{}) {
			t.Fatal("something goes before anything was noted")
		}
		b.Note(log[0], 0)
		for range 40 {
			switch r.IntN(5) {
			case 0, 1:
				log = append(log, Needed{segment.MsgID(r.IntN(50)), segment.Offset(r.IntN(50))})
				b.Note(log[len(log)-1], segment.Offset(len(log)-1))
			case 2:
				committed += r.IntN(len(log) - committed)
			case 3:
				if r.IntN(3) == 0 {
					log = log[:committed+1+r.IntN(len(log)-committed)]
					b.Note(log[len(log)-1], segment.Offset(len(log)-1))
				}
			}
			got := b.Advance(segment.Offset(committed))
			for at, k := range log[committed:] {
				if got.ID > k.ID || got.At > k.At {
					t.Fatalf("seed %d: %+v is settled with %d committed, and a cut to %d leaves %+v",
						seed, got, committed, committed+at, k)
				}
			}
		}
		b.Advance(segment.Offset(len(log) - 1))
		if got := b.Advance(segment.Offset(len(log) - 1)); got != log[len(log)-1] {
			t.Fatalf("seed %d: %+v is settled, and all is committed: %+v", seed, got, log[len(log)-1])
		}
	}
}
