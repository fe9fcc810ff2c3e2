package replicate

import "penstock/segment"

// append takes batches from the leader. The checks come in this order. A frame whose arguments do not fit its batches
// is rejected (B10). A batch that the log already has, by epoch, position and checksum, is acknowledged and not applied
// twice (B8). A frame that would leave a hole is answered with the end of this log. A batch that does not continue this
// log byte for byte is refused, and the logs are compared anew (B9). The remaining batches are appended together, with
// one ActAppend.
func (f *Follower) append(m *Message, acts *Actions) {
	if !fits(m) {
		r := f.send(MsgReject, acts)
		r.Code, r.Position = RejectArgument, f.log.End.Next
		return
	}
	n, known := f.skipKnown(m.Batches)
	switch {
	case !known:
		f.contradicted(acts)
		return
	case n < len(m.Batches) && m.Batches[n].Position > f.log.End.Next:
		f.gap(acts)
		return
	case n < len(m.Batches) && !f.continues(&m.Batches[n], m.Epoch):
		f.contradicted(acts)
		return
	}
	f.said = max(f.said, m.Committed)
	if rest := m.Batches[n:]; len(rest) > 0 {
		if f.log.End.Next-f.log.Durable+segment.Position(len(rest)) > segment.Position(f.cfg.MaxWindowCount) {
			return // beyond the window: the leader sends it again when acks have come
		}
		for i := range rest {
			b := &rest[i]
			f.table.Note(EpochStart{Epoch: b.Epoch, Position: b.Position, Offset: b.Offset})
			f.recent.add(b, f.log.Durable)
			advance(&f.log.End, b)
		}
		a := acts.add(ActAppend)
		a.Position, a.Message = rest[0].Position, *m
	}
	f.commit()
	if n > 0 {
		f.ack(acts) // the leader repeated batches, perhaps because an ack was lost
	}
}

// fits checks the frame's arguments against its batches, and the batches against each other.
func fits(m *Message) bool {
	if len(m.Batches) == 0 || m.Position != m.Batches[0].Position ||
		m.Until != m.Position+segment.Position(len(m.Batches)) {
		return false
	}
	last := &m.Batches[len(m.Batches)-1]
	if m.FirstID != m.Batches[0].FirstID || m.NextID != last.NextID() {
		return false
	}
	for i := range m.Batches {
		b := &m.Batches[i]
		if b.Bytes < segment.HeaderBytes || b.Bytes > segment.MaxBatchBytes || b.Epoch > m.Epoch {
			return false
		}
		if i == 0 {
			continue
		}
		a := &m.Batches[i-1]
		if b.Position != a.Position+1 || b.FirstID != a.NextID() || b.Offset != a.End() || b.PrevCRC != a.CRC ||
			b.Epoch < a.Epoch {
			return false
		}
	}
	return true
}

// skipKnown counts the batches that are already in the log. It returns false if the log has another batch at one of
// their positions.
func (f *Follower) skipKnown(batches []Batch) (int, bool) {
	for i := range batches {
		b := &batches[i]
		if b.Position >= f.log.End.Next {
			return i, true
		}
		if f.recent.holds(b.Position) {
			if s := f.recent.at(b.Position); s.epoch != b.Epoch || s.crc != b.CRC || s.end != b.End() {
				return i, false
			}
		} else if e, ok := f.table.At(b.Position); ok && e != b.Epoch {
			return i, false
		}
	}
	return len(batches), true
}

// continues says whether b follows the last batch of the log: same offset, same id, chained to its checksum.
func (f *Follower) continues(b *Batch, epoch segment.Epoch) bool {
	end := &f.log.End
	return b.Offset == end.End && b.FirstID == end.NextID && b.PrevCRC == end.LastCRC && b.Epoch >= end.Epoch &&
		b.Epoch >= f.table.Last() && b.Epoch <= epoch
}

// contradicted handles a leader's batch that does not fit this log, although an exchange found the two to agree. The
// frame may precede an event that this node has not heard of, so the logs are compared anew. But if the logs differ
// exactly where the exchange placed the end of their common part, then stored bytes are wrong at one of the two
// replicas.
func (f *Follower) contradicted(acts *Actions) {
	if f.log.End.Next == f.matchedAt {
		f.fail(ErrDamaged, acts)
		return
	}
	f.state = idle
	f.send(MsgResync, acts)
}

func (f *Follower) gap(acts *Actions) {
	m := f.send(MsgGap, acts)
	m.Position, m.Offset = f.log.End.Next, f.log.End.End
}

// heartbeat takes the leader's Committed and the end of what the leader has sent: batches below that end that are not
// here were lost.
func (f *Follower) heartbeat(m *Message, acts *Actions) {
	f.said = max(f.said, m.Committed)
	f.commit()
	if m.Position > f.log.End.Next {
		f.gap(acts)
	}
	f.ack(acts)
}
