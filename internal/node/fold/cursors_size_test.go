package fold

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"penstock/segment"
)

// MaxBytes never returns less than Append writes, whatever the lists contain, and with long lists not much more. Files
// of the commit log are made as large as it says, and it causes puts to be refused.
func TestCursorsMaxBytes(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 3))
		longest, gap := 1+rng.IntN(1<<(1+seed%13)), 1+rng.Uint64N(1<<(1+seed%34))
		end := segment.Offset(1 + rng.Int64N(1<<(1+seed%60)))
		c, items := someCursors(rng, longest, gap, end)
		got, most := int64(len(c.Append(nil))), c.MaxBytes(end)
		if got > most {
			t.Fatalf("seed %d: %d bytes, at most %d were foretold", seed, got, most)
		}
		// The estimate may be up to two bytes too large for each number of attempts, and some bytes for each due time,
		// offset and difference of ids, and by constants.
		if slack := most - got; slack > int64(items*6+100*(c.Len()+1)+700*c.Len()) {
			t.Errorf("seed %d: %d bytes, %d items, %d foretold", seed, got, items, most)
		}
	}
	if got, most := int64(len(new(Cursors).Append(nil))), new(Cursors).MaxBytes(0); got > most {
		t.Errorf("an empty fold: %d bytes, at most %d were foretold", got, most)
	}
}

// someCursors returns a fold with lists of all kinds. Only their sizes matter here.
func someCursors(rng *rand.Rand, longest int, gap uint64, end segment.Offset) (c *Cursors, items int) {
	ids := func() (out []segment.MsgID) {
		id := segment.MsgID(0)
		for range rng.IntN(longest) {
			if id += 1 + segment.MsgID(rng.Uint64N(gap)); id > segment.MaxMsgID-1 {
				break
			}
			out = append(out, id)
		}
		items += len(out)
		return out
	}
	due := func() int64 { return 1_700_000_000_000 + rng.Int64N(1<<40) }
	c = &Cursors{end: segment.MaxMsgID, TopicPaused: true, HeldFrom: segment.MaxMsgID}
	for i := range rng.IntN(4) {
		ch := &Cursor{
			Name: fmt.Sprint(i, strings.Repeat("n", rng.IntN(50))), Start: segment.MaxMsgID, Confirmed: segment.MaxMsgID,
		}
		for _, id := range ids() {
			ch.Ranges.Add(id)
		}
		for _, id := range ids() {
			ch.Requeued = append(ch.Requeued, Deferral{ID: id, DueMs: due(), Attempts: uint16(rng.IntN(MaxAttempts + 1))})
		}
		for _, id := range ids() {
			ch.Dead = append(ch.Dead, DeadMessage{ID: id, Attempts: uint16(rng.IntN(MaxAttempts + 1))})
		}
		if rng.IntN(2) == 0 {
			ch.Settings = ChannelSettings{
				Version: 1 << 63, MaxAttempts: 7, DeadLetter: "dead", Order: OrderKey, KeyHeader: "k",
				Filter: Filter{Rules: []Rule{{Header: "h", Pattern: strings.Repeat("p", rng.IntN(200))}}},
			}
			if why := ch.Settings.invalid(); why != "" {
				panic(why)
			}
		}
		c.channels = append(c.channels, ch)
	}
	for _, id := range ids() {
		c.Deferred = append(c.Deferred, DeferredMessage{ID: id, DueMs: due(), At: segment.Offset(rng.Int64N(int64(end) + 1))})
	}
	for _, id := range ids() {
		c.carried = append(c.carried, carriedPlace{ID: id, At: segment.Offset(rng.Int64N(int64(end) + 1))})
	}
	for i := range rng.IntN(100) {
		p := producer{
			id: uint64(i+1) << 50, epoch: maxUint32, next: maxUint32, tenure: 1<<64 - 1, usedNs: 1<<63 - 1,
			name: strings.Repeat("n", 1+rng.IntN(MaxProducerNameBytes)), n: ProducerWindow,
		}
		for j := range p.last {
			p.last[j] = producedBatch{segment.MsgID(j) << 43, 1 << 31, maxUint32}
		}
		c.producers.all = append(c.producers.all, p)
		c.producers.nameBytes += int64(len(p.name))
		c.producers.newestNs = p.usedNs
		items += 4
	}
	return c, items
}
