package node

import (
	"penstock/internal/node/diskwatch"
	"penstock/internal/node/machine"
)

// newDiskMember makes the diskwatch.Member, which tells the other nodes the state of this node's disk, and hands over
// this node's leaderships when the disk hangs (unless Options.DiskPatience is negative).
func (cn *clusterNode) newDiskMember() *diskwatch.Member {
	c := diskwatch.MemberConfig{
		Watch: &cn.e.disks, Host: cn.e.host, Log: cn.Log, Ctx: cn.Ctx, Spawn: cn.Spawn, Report: cn.Rows.ReportDisk,
	}
	if cn.e.opts.DiskPatience > 0 {
		c.Led = cn.leaderships
	}
	return diskwatch.NewMember(c)
}

func (cn *clusterNode) diskJudged(v machine.DiskVerdict) { cn.disk.Judged(v) }

// leaderships returns, for each partition that this node leads, a function that gives the leadership away. For the
// results see diskwatch.MemberConfig.Led.
func (cn *clusterNode) leaderships() []func() (handed, again bool) {
	var led []func() (handed, again bool)
	for _, pt := range cn.e.store.Partitions() {
		if pt.Leads() {
			led = append(led, func() (handed, again bool) { return cn.GiveAway(pt) })
		}
	}
	return led
}
