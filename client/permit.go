package client

import (
	"time"

	"penstock/internal/server/native/wire"
)

// permit is what a subscription of an ordered channel knows of whether deliveries may still be begun: returned by Next.
// A leader that stands still, or that lost the connection without the client's knowledge, is replaced, and its
// successor delivers the same messages and the next ones to others. So the leader permits the client to begin
// deliveries for a while at a time (wire.Permit). permit does no I/O and reads no clock: times are those of awake.
// Consumer.mu guards it.
//
// Invariant: a delivery is begun only while its subscription has not ended, before until, and if no recall names it.
type permit struct {
	ordered  bool              // the node gives permits, so the channel is ordered; without that everything may be begun
	until    time.Duration     // end of the newest permit
	asked    time.Duration     // when the newest stamp was sent
	recalled map[uint32]uint64 // by partition: number of the newest delivery that must not be begun
}

var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) + 1 } // a stamp is not 0

const (
	// stampEvery is how often the client asks for another permit while deliveries wait in it.
	stampEvery = 500 * time.Millisecond
	// maxStampAge bounds how much the clocks of client and leader can drift apart between a stamp and its permit.
	maxStampAge = time.Minute
)

// take notes a permit that has arrived. It returns a time before which the leader did not send it.
func (p *permit) take(now time.Duration, m *wire.Permit) (sent time.Duration) {
	p.ordered = true
	age := time.Duration(m.AgeMs) * time.Millisecond
	sent = min(time.Duration(m.Stamp)+age, now)
	if age <= maxStampAge {
		p.until = max(p.until, sent+time.Duration(m.WithinMs)*time.Millisecond)
	}
	return sent
}

// begins says whether a delivery may be begun now.
func (p *permit) begins(now time.Duration) bool { return !p.ordered || now < p.until }

// asks returns when to ask for another permit. It returns 0 if none is needed. waiting says that deliveries wait.
func (p *permit) asks(waiting bool) time.Duration {
	if !p.ordered || !waiting {
		return 0
	}
	return p.asked + stampEvery
}

// recall notes a recall.
func (p *permit) recall(m *wire.Recall) {
	if p.recalled == nil {
		p.recalled = make(map[uint32]uint64)
	}
	p.recalled[m.Partition] = max(p.recalled[m.Partition], m.Number)
}

// drops says whether a delivery was recalled.
func (p *permit) drops(id ID, number uint64) bool {
	return len(p.recalled) > 0 && number <= p.recalled[id.Partition()]
}
