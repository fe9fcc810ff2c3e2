package replicate

// absence is what a leader knows of a node that answers that it has no copy of the partition (RejectAbsent): the copy
// is not open yet, or could not be opened, or the node does not know the topic. The leader probes such a node at
// growing intervals until it sends any other message. A copy that has just been opened sends a Resync first.
type absence struct {
	count   int   // such answers in a row; 0: the node has a copy, as far as is known
	since   int64 // time of the first of them
	probeAt int64 // time of the probe that the newest answered: several answers to one probe count once
}

// maxAbsentShift bounds the pause between two questions: RetryNs << maxAbsentShift, 16 s.
const maxAbsentShift = 5

// pause returns how long to wait before the next probe.
func (a *absence) pause(retryNs int64) int64 { return retryNs << min(a.count, maxAbsentShift) }

// notHere takes the answer that the node has no copy. The next probe waits for tick.
//
// If a report was already answered in this exchange, RejectAbsent does not say which is true now: either the copy has
// gone since, or the node refused an early probe before it opened the copy, and the report has overtaken this answer.
// Only a new exchange tells. In the old exchange a copy that exists is already following, and would answer every probe
// with an ack that no longer ends the exchange.
func (l *Leader) notHere(p *Progress, now int64, acts *Actions) {
	if p.State != Probe || p.matched {
		l.probe(p, now, acts)
		return
	}
	a := &p.absent
	if a.count > 0 && a.probeAt == p.probeAt {
		return
	}
	if a.count == 0 {
		a.since = now
	}
	a.count++
	a.probeAt = p.probeAt
	l.absences++
}
