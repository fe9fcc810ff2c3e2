package engine

import (
	"sync/atomic"
	"time"
)

const (
	// evacuateTime bounds one attempt of a node whose disk hangs to hand over its leaderships.
	evacuateTime = 30 * time.Second
	// evacuatePause is the pause between two rounds of an attempt.
	evacuatePause = 250 * time.Millisecond
	// maxEvacuateCount is how many partitions are handed over at the same time.
	maxEvacuateCount = 8
)

// evacuate hands every leadership over to a replica whose disk is good, because this node's disk hangs. It waits for
// nothing that waits for the disk. Publishers of batches that were appended and not committed hear that the outcome is
// unknown, as after a failover; puts still in the inboxes are forwarded to the new leaders. core.DiskWatch decides how
// often it runs, and is told whether anything was handed over. It runs on a goroutine of its own.
func (cn *clusterNode) evacuate() {
	if !cn.evacuating.CompareAndSwap(false, true) {
		return
	}
	defer cn.evacuating.Store(false)
	ctx, cancel := cn.e.host.WithTimeout(cn.ctx, evacuateTime)
	defer cancel()
	// First tell the other nodes, or one of them would give a leadership back. If they cannot be told, go on
	// nevertheless.
	if err := cn.reportDisk(cn.e.disks.State()); err != nil {
		cn.log.Warn("the other nodes could not be told that the disk hangs", "error", err)
	}
	before := cn.e.disks.Stats().HandOvers
	left := 0
	for ctx.Err() == nil && cn.e.disks.Hangs() {
		if left = cn.evacuateRound(); left == 0 || cn.sleep(ctx, evacuatePause) != nil {
			break
		}
	}
	handed := cn.e.disks.Stats().HandOvers - before
	if handed == 0 {
		cn.e.disks.MovedNone()
	}
	if cn.ctx.Err() == nil && (handed > 0 || left > 0) {
		cn.log.Warn("the disk hangs: leaderships go to replicas whose disks are good; of what no other can take publishers "+
			"hear that it is unknown",
			"handed_over", handed, "nobody_can_take", left)
	}
}

// evacuateRound tries each partition once. It returns how many are still led here although they have another replica in
// sync.
func (cn *clusterNode) evacuateRound() int {
	var led []*partition
	for _, pt := range cn.e.store.partitionList() {
		if pt.Leading.Load() {
			led = append(led, pt)
		}
	}
	var next, left atomic.Int64
	workers := min(len(led), maxEvacuateCount)
	ended := make(chan struct{}, workers)
	for range workers {
		cn.spawn(func() {
			for i := next.Add(1) - 1; i < int64(len(led)); i = next.Add(1) - 1 {
				if cn.tryEvacuate(led[i]) {
					left.Add(1)
				}
			}
			ended <- struct{}{}
		})
	}
	for range workers {
		cn.e.host.Receive(ended)
	}
	return int(left.Load())
}

// tryEvacuate tries to hand one partition over, and says whether to try again.
func (cn *clusterNode) tryEvacuate(pt *partition) bool {
	handed, again := cn.giveAway(pt)
	if handed {
		cn.e.disks.HandedOver()
	}
	return again
}
