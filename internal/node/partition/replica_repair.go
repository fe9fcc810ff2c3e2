package partition

import (
	"errors"
	"slices"
	"time"

	"penstock/internal/node/logread"
	"penstock/replicate"
	"penstock/segment"
)

// rangeRepair overwrites a damaged range of a copy with the bytes that another replica sent. It owns these bytes.
type rangeRepair struct {
	replica *Replica
	from    segment.Position
	at      segment.Offset // where body begins
	body    []byte
	batches []replicate.Batch // of body
}

// repair starts the repair of the range that the frame has the bytes of: a goroutine writes them. mu is held.
func (r *Replica) repair(m *replicate.Message) {
	p := &rangeRepair{
		replica: r, from: m.Position, at: m.Batches[0].Offset, body: slices.Clone(r.frame.d.Body),
		batches: slices.Clone(m.Batches),
	}
	r.node.Spawn(p.run)
}

// run writes the range and tells the machine. No lock is held.
func (p *rangeRepair) run() {
	r := p.replica
	until, err := p.write()
	if errors.Is(err, errBeginsBefore) && !r.hasBroken() {
		r.run(func() {
			for _, ev := range r.isolated() { // the machine asks again, now for the whole damaged range
				r.step(&ev)
			}
		})
		return
	}
	if err != nil {
		p.failed(err)
		return
	}
	r.node.store.log.Info("a damaged range was repaired from another replica",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "bytes", len(p.body))
	if len(r.pt.log.Isolated()) == 0 {
		r.pt.flush.ReopenInbox()
	}
	r.run(func() { r.step(&replicate.Event{Kind: replicate.EvRepaired, Position: p.from, Until: until}) })
	r.pt.ResumeReaders()
}

// failed handles a repair that failed. If a file of the copy is broken, or holds batches of another history that
// verify, the copy is given up. Otherwise the machine tries again. It takes Replica.mu.
func (p *rangeRepair) failed(err error) {
	r := p.replica
	if r.brokenFile() != nil || errors.Is(err, errOtherBatches) && r.othersHaveAll() {
		r.discard(err, nil)
		return
	}
	if now := r.node.Now(); r.loggedRepairAt.Load() == 0 || now-r.loggedRepairAt.Load() > int64(repairLogEvery) {
		r.loggedRepairAt.Store(now)
		r.node.store.log.Warn("a damaged range could not be repaired yet",
			"topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
	}
}

// repairLogEvery is the least time between two log lines about failed repairs of one copy. Repairs are tried more often
// than that.
const repairLogEvery = 10 * time.Second

// errBeginsBefore says that the damaged range begins before the bytes that were fetched.
var errBeginsBefore = errors.New("engine: what is damaged begins before the range that was fetched")

// errOtherBatches says that a damaged range does not begin and end where batches of the other replicas do. So batches
// beside it are not those that the others have, although they verify: a second process has written to the same files.
var errOtherBatches = errors.New("engine: a damaged range begins or ends inside a batch of the other replicas: this " +
	"copy has batches beside it that they do not have")

// write writes body over the isolated ranges of the log. Afterwards everything below until can be read. If body ends
// inside a damaged range, only the part that body covers is repaired, and the machine asks for the rest. write waits
// for the disk and takes no lock of the replica.
func (p *rangeRepair) write() (until segment.Position, err error) {
	log := p.replica.pt.log
	w := segment.NewWriter()
	defer w.Close()
	end := p.at + segment.Offset(len(p.body))
	for _, bad := range log.Isolated() {
		if bad.To <= p.at || bad.From >= end {
			continue
		}
		if bad.From < p.at {
			return 0, errBeginsBefore
		}
		bad.To = min(bad.To, end)
		if !beginsAt(p.batches, bad.From) || bad.To < end && !beginsAt(p.batches, bad.To) {
			return 0, errOtherBatches
		}
		if err := log.Repair(w, bad, p.body[bad.From-p.at:bad.To-p.at]); err != nil {
			return 0, err
		}
	}
	return p.batches[len(p.batches)-1].Position + 1, nil
}

// beginsAt says whether one of the batches begins at an offset.
func beginsAt(batches []replicate.Batch, at segment.Offset) bool {
	return slices.ContainsFunc(batches, func(b replicate.Batch) bool { return b.Offset == at })
}

// isolated returns events that tell a new machine which positions of the log cannot be read. A machine does not inherit
// that knowledge from the machine before it.
func (r *Replica) isolated() (events []replicate.Event) {
	for _, bad := range logread.Isolated(r.pt.log, segment.Position(r.leaderStart.Load())) {
		events = append(events, replicate.Event{Kind: replicate.EvCorrupt, Position: bad.From, Until: bad.Until})
	}
	return events
}
