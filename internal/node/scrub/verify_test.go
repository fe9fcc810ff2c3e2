package scrub

import (
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"testing"

	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// fakeCopy answers a comparison like a node's copy that consists of batches of 100 bytes with one message each.
type fakeCopy struct {
	bodies   []byte // content that distinguishes the batches
	bad      map[int]bool
	repaired bool // as soon as damage was found
	limit    int  // number of batches that are committed here
	start    int  // number of batches that retention has removed here
}

const fakeBatchBytes = 100

func (c *fakeCopy) answer(q wire.VerifyRequest) *wire.VerifyAnswer {
	a := &wire.VerifyAnswer{
		Start:     segment.Offset(c.start) * fakeBatchBytes,
		Committed: segment.Offset(c.limit) * fakeBatchBytes,
		Next:      q.At,
	}
	to := a.Committed
	if q.To != 0 {
		to = q.To
	}
	var read []byte
	for a.Next < to && a.Next-q.At < segment.Offset(q.Max) || a.Next < q.To {
		n := int(a.Next / fakeBatchBytes)
		if n < c.start || n >= len(c.bodies) {
			break
		}
		if c.bad[n] {
			a.Bad, a.BadFrom, a.BadTo = true, a.Next, a.Next+fakeBatchBytes
			if a.Next == q.At {
				a.Damaged = a.BadTo
			}
			if c.repaired {
				delete(c.bad, n)
			}
			break
		}
		if a.Next == q.At {
			a.First, a.Count = segment.MsgID(n), 1
		}
		read = append(read, c.bodies[n])
		a.Next += fakeBatchBytes
	}
	a.Sum = crc32.ChecksumIEEE(read)
	return a
}

// verified compares copies until nothing is left, as the callers of Compare do.
func verified(t *testing.T, copies ...*fakeCopy) (found []string) {
	t.Helper()
	v := &verification{out: &Verified{}}
	v.Log, v.Topic = slog.New(slog.DiscardHandler), "t"
	for i := range copies {
		v.nodes = append(v.nodes, &meta.Node{ID: replicate.NodeID(i), Name: fmt.Sprintf("n%d", i)})
	}
	v.Ask = func(_ context.Context, n *meta.Node, q wire.VerifyRequest) (*wire.VerifyAnswer, error) {
		return copies[n.ID].answer(q), nil
	}
	for rounds := 0; !v.out.Done; rounds++ {
		if err := v.round(t.Context()); err != nil || rounds > 1000 {
			t.Fatalf("after %d rounds: %v", rounds, err)
		}
		v.noted(t.Context())
	}
	if len(v.damage) > 0 {
		t.Errorf("what was met at %+v is not told", v.damage)
	}
	least := copies[0].limit
	for _, c := range copies {
		least = min(least, c.limit)
	}
	if v.out.Next < segment.Offset(least)*fakeBatchBytes {
		t.Errorf("it came to %d, and %d batches are committed everywhere", v.out.Next, least)
	}
	for _, d := range v.out.Found {
		found = append(found, fmt.Sprintf("%d to %d, first %d: damaged %v, differing %v",
			d.From, d.To, d.First, d.Damaged, d.Differing))
	}
	return found
}

// Compare names the place of a difference and the node whose copy differs. The copy may be the leader's or a
// follower's. It may be damaged, damaged but repaired at once, or intact but different.
func TestVerifyNamesWhatDiffers(t *testing.T) {
	const n = 50
	bodies := make([]byte, n)
	for i := range bodies {
		bodies[i] = byte(i)
	}
	for at := range n {
		other := slices.Clone(bodies)
		other[at] ^= 0x80
		for _, c := range []struct {
			name   string
			copies []*fakeCopy
			want   string
		}{
			{"the same", []*fakeCopy{{bodies: bodies}, {bodies: bodies}, {bodies: bodies}}, "[]"},
			{"one lags", []*fakeCopy{{bodies: bodies}, {bodies: bodies[:n-3]}, {bodies: bodies}}, "[]"},
			{"one has removed more", []*fakeCopy{
				{bodies: bodies}, {bodies: bodies, start: at}, {bodies: bodies, start: at / 2},
			}, "[]"},
			{"a follower differs", []*fakeCopy{
				{bodies: bodies}, {bodies: bodies}, {bodies: other},
			}, "damaged [], differing [n2]"},
			{"the leader differs", []*fakeCopy{
				{bodies: other}, {bodies: bodies}, {bodies: bodies},
			}, "damaged [], differing [n1 n2]"},
			{"one is damaged", []*fakeCopy{
				{bodies: bodies}, {bodies: bodies, bad: map[int]bool{at: true}}, {bodies: bodies},
			}, "damaged [n1], differing []"},
			{"the leader is damaged", []*fakeCopy{
				{bodies: bodies, bad: map[int]bool{at: true}}, {bodies: bodies}, {bodies: bodies},
			}, "damaged [n0], differing []"},
			{"one is damaged and another differs", []*fakeCopy{
				{bodies: bodies}, {bodies: bodies, bad: map[int]bool{at: true}}, {bodies: other},
			}, "damaged [n1], differing [n2]"},
			{"one was damaged", []*fakeCopy{
				{bodies: bodies}, {bodies: bodies}, {bodies: bodies, bad: map[int]bool{at: true}, repaired: true},
			}, "damaged [n2], differing []"},
		} {
			for _, copy := range c.copies {
				copy.limit = len(copy.bodies)
			}
			want := "[]"
			if c.want != "[]" {
				want = fmt.Sprintf("[%d to %d, first %d: %s]", at*fakeBatchBytes, (at+1)*fakeBatchBytes, at, c.want)
			}
			if got := fmt.Sprint(verified(t, c.copies...)); got != want {
				t.Errorf("%s at batch %d: %s, want %s", c.name, at, got, want)
			}
		}
	}
}
