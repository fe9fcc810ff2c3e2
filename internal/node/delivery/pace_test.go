package delivery

import (
	"testing"

	"penstock/internal/node/fold"
	"penstock/segment"
)

// Over any time, a channel hands out as many bytes as its rate says: never more than 10 ms ahead of it, but for the
// last message, which may be larger than what the rate allows in that time. Large and small messages share the rate.
func TestByteRateIsKept(t *testing.T) {
	const start = 1_700_000_000_000
	sizes := []int{1, 70_000, 300, 1 << 20, 9000}
	for _, perSecond := range []uint64{100_000, 5 << 20, 1 << 30} {
		b := newBusy(1 << 30)
		b.configure(fold.ChannelSettings{RateBytes: perSecond})
		b.step(Event{Kind: EvVisible, End: segment.MsgID(10_000_000)})
		seconds := int64(30_000_000/perSecond + 3)
		delivered, last := int64(0), 0
		for nowMs := int64(start); nowMs < start+seconds*1000; {
			b.now = nowMs * nsPerMs
			b.step(Event{Kind: EvTick})
			for b.c.Hungry() {
				size := sizes[int(b.next)%len(sizes)]
				if b.step(Event{Kind: EvOffer, Msg: b.next, Bytes: size}); b.res.Decision == Deliver {
					b.next++
					delivered, last = delivered+int64(size), size
					b.finish(b.res.ID)
				}
			}
			if b.res.Why != HoldRate {
				t.Fatalf("rate %d: held for reason %d", perSecond, b.res.Why)
			}
			most := int64(last) + (nowMs-start+RateBurstMs)*int64(perSecond)/1000
			if delivered > most+most/100_000 { // the interval of a byte is rounded
				t.Fatalf("rate %d: %d bytes after %d ms, at most %d", perSecond, delivered, nowMs-start, most)
			}
			due, ok := b.c.NextDue()
			if !ok || due <= nowMs {
				t.Fatalf("rate %d: at %d due at %d, %v", perSecond, nowMs, due, ok)
			}
			nowMs = due
		}
		if least := seconds * int64(perSecond) * 999 / 1000; delivered < least {
			t.Errorf("rate %d: %d bytes in %d s", perSecond, delivered, seconds)
		}
	}
}

// Both rates of a channel hold, and a rate so low that one message takes longer than the clock can count stops it.
func TestRatesTogether(t *testing.T) {
	var p pace
	const startMs = 1_700_000_000_000
	p.set(&fold.ChannelSettings{RatePerSecond: 10, RateBytes: 1000}, partShare{1, 1}, startMs*nsPerMs)
	nowMs := int64(startMs)
	for _, tc := range []struct {
		size   int
		nextMs int64
	}{{10, 100}, {1000, 1100}, {0, 1200}, {50, 1300}} {
		p.spend(nowMs*nsPerMs, tc.size)
		if nowMs = p.dueMs() + RateBurstMs; nowMs-startMs != tc.nextMs {
			t.Errorf("after %d bytes the next delivery is at %d ms, want %d", tc.size, nowMs-startMs, tc.nextMs)
		}
	}
	p.set(&fold.ChannelSettings{RateBytes: 1}, partShare{1, 25_000}, 0)
	if p.spend(1_700_000_000_000*nsPerMs, 1<<30); p.allows(2_000_000_000_000 * nsPerMs) {
		t.Error("a message of a GiB at a byte per second does not hold the next one")
	}
	if p.set(&fold.ChannelSettings{}, partShare{1, 1}, 0); !p.allows(0) || p.limits() {
		t.Error("without limits there is a pace")
	}
}
