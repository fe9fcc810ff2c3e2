package delivery

import (
	"math/bits"

	"penstock/internal/node/fold"
)

// RateBurstMs is how far deliveries may run ahead of an even pace. Timers wake the channel a millisecond or two late;
// this burst makes up for the delay.
const RateBurstMs = 10

// pace spaces the deliveries of a channel evenly, as its settings limit their number and their bytes per second. A
// message may be larger than what the bytes of a second allow: it is delivered, and the next one waits the longer. A
// Channel has one pace; its zero value limits nothing.
type pace struct {
	messages, bytes rate
	waiting         bool // a delivery was held because of the pace
}

// set takes the limits of settings, of which this node has a share.
func (p *pace) set(s *fold.ChannelSettings, share partShare, nowNs int64) {
	p.messages.set(uint64(s.RatePerSecond), share, nowNs)
	p.bytes.set(s.RateBytes, share, nowNs)
	p.waiting = p.waiting && p.limits()
}

// limits says whether there is any limit.
func (p *pace) limits() bool { return p.messages.intervalFx != 0 || p.bytes.intervalFx != 0 }

func (p *pace) readyNs() int64 { return max(p.messages.nextNs, p.bytes.nextNs) - RateBurstMs*nsPerMs }

// dueMs is when the next EvTick can release a held delivery, in unix ms.
func (p *pace) dueMs() int64 { return (p.readyNs() + nsPerMs - 1) / nsPerMs }

// allows says whether a delivery may begin now. If not, NextDue says when to ask again.
func (p *pace) allows(nowNs int64) bool {
	p.waiting = p.limits() && p.readyNs() > nowNs
	return !p.waiting
}

func (p *pace) tick(nowNs int64) { p.waiting = p.waiting && p.readyNs() > nowNs }

// spend counts a delivery that begins now, of a message whose body has that many bytes.
func (p *pace) spend(nowNs int64, size int) {
	p.messages.spend(nowNs, 1)
	p.bytes.spend(nowNs, uint64(size))
}

// rate counts the time of the next delivery in ns and 1/65536 ns, so that the largest rates are met exactly, too.
type rate struct {
	intervalFx uint64 // 1/65536 ns for each unit that is delivered; 0: no limit
	nextNs     int64  // when the next delivery is due at an even pace
	fraction   uint64 // of nextNs, in 1/65536 ns
}

const rateFractionBits = 16

// set changes the rate. The next delivery is due one interval from now at the latest.
func (r *rate) set(perSecond uint64, s partShare, nowNs int64) {
	if perSecond == 0 {
		*r = rate{}
		return
	}
	r.intervalFx = max(1, (1e9<<rateFractionBits)*s.all/(perSecond*s.here))
	r.nextNs = min(r.nextNs, nowNs+int64(r.intervalFx>>rateFractionBits))
}

// spend counts n units that are delivered now.
func (r *rate) spend(nowNs int64, n uint64) {
	if r.intervalFx == 0 {
		return
	}
	if r.nextNs < nowNs {
		r.nextNs, r.fraction = nowNs, 0
	}
	high, low := bits.Mul64(r.intervalFx, n)
	low, carry := bits.Add64(low, r.fraction, 0)
	if high += carry; high >= 1<<(rateFractionBits-4) { // 36 years and more
		high, low = 1<<(rateFractionBits-4), 0
	}
	r.nextNs += int64(high<<(64-rateFractionBits) | low>>rateFractionBits)
	r.fraction = low & (1<<rateFractionBits - 1)
}
