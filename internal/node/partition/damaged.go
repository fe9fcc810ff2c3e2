package partition

import (
	"penstock/internal/node/datadir"
	"penstock/segment"
)

// MeetDamage reads the batch at at from the device, of which somebody knows that it is damaged. If it does not verify,
// it is written again from memory, or isolated, as if a reader had met it.
func (pt *Partition) MeetDamage(c *segment.Checker, at segment.Offset) {
	if pt.replica.HasLog() {
		_, _ = pt.log.Check(c, at, segment.HeaderBytes, 0) // the log notes what is wrong
	}
}

// readDamaged reads which places a restore found damaged. OpenPartition meets them.
func (r *Recovery) readDamaged() {
	var err error
	if r.damaged, err = datadir.ReadDamaged(r.store.disk); err != nil {
		r.store.log.Warn("the list of what did not verify when this directory was restored cannot be read: the node meets "+
			"that damage where it is read; the scrub looks for it", "file", datadir.DamagedFile, "error", err)
	}
}

// meetDamaged meets the damage of a copy that a restore has found.
func (r *Recovery) meetDamaged(pt *Partition) {
	places := r.damaged[pt.Identity()]
	if len(places) == 0 {
		return
	}
	c := segment.NewChecker()
	defer c.Close()
	for _, at := range places {
		_, _ = pt.log.Check(c, at, segment.HeaderBytes, 0) // the log notes what is wrong
	}
	r.isDamaged = r.isDamaged || len(pt.log.Isolated()) > 0
}

// ForgetDamaged removes the list of damaged places when all of them read back. Open calls it when all partitions are
// open. If the file cannot be removed, the next start tries again.
func (r *Recovery) ForgetDamaged() {
	if len(r.damaged) > 0 && !r.isDamaged {
		_ = r.store.disk.Remove(datadir.DamagedFile)
	}
}
