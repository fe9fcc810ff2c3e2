package replicate

// absence is what a leader knows of a node that says that it has no copy of the partition (RejectAbsent): it was not
// opened yet, or could not be, or the node does not know the topic. Such a node is asked ever more rarely, until it
// says anything else; of a copy that is opened the first word is a Resync.
type absence struct {
	count   int   // answers in a row; 0: there is a copy, as far as is known
	since   int64 // of the first of them
	probeAt int64 // of the question that the newest one answered: one that came many times counts once
}

// maxAbsentShift bounds the pause between two questions: RetryNs << maxAbsentShift, 16 s.
const maxAbsentShift = 5

// pause is how long the next question waits.
func (a *absence) pause(retryNs int64) int64 { return retryNs << min(a.count, maxAbsentShift) }

// notHere takes the answer that there is no copy. It is not asked at once.
//
// Where a report was answered in this exchange, it says less: the copy is gone since, or the question came before the
// copy was opened, and the report has overtaken this answer. Only a new exchange tells. In the old one a copy follows
// by now, and answers every question with an ack that nothing here waits for.
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
