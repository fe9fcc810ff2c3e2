package machine

import "fmt"

// DiskState says how well a node's disk works. Lower values are better, and comparisons rely on that order.
type DiskState uint8

const (
	DiskGood   DiskState = iota
	DiskSlow             // a write took long, or the disk hung and has not proven itself since
	DiskHung             // no write came back for DiskConfig.PatienceNs while writes waited
	DiskFailed           // as DiskHung, for DiskConfig.FailedNs
)

func (s DiskState) String() string {
	names := [...]string{"good", "slow", "hung", "failed"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("DiskState(%d)", uint8(s))
}

// DiskConfig has the limits of a DiskWatch, in ns. All must be greater than 0.
type DiskConfig struct {
	PatienceNs int64 // time without any completion while writes wait, after which the disk hangs
	FailedNs   int64 // likewise, after which it has failed
	PollNs     int64 // how often the caller calls Step
	IdleNs     int64 // time without a write after which an idle disk is probed; DiskProbeIdleNs, except in simulations
}

// Limits of a DiskWatch.
const (
	// The disk is slow after a fifth of the patience without a completion.
	diskSlowFraction = 5
	// A disk that was slow is good again after two patiences in which it was not; one that hung, after six.
	diskCalmPatiences   = 2
	diskProvenPatiences = 6
	// It also needs this many completed writes in that time.
	diskProvenWrites = 5

	// DiskProbeIdleNs is the time without a write after which an idle disk is probed.
	DiskProbeIdleNs = 10e9
	// DiskHandOverEveryNs is the least time between two hand-overs, unless the disk was good in between.
	DiskHandOverEveryNs = 3 * 60e9
	// DiskKeptEveryNs is the least time after a hand-over that gave nothing away, because no other node could take
	// anything.
	DiskKeptEveryNs = 30e9
	// Other nodes are told of at most MaxDiskTellCount changes within DiskTellSpanNs.
	DiskTellSpanNs   = 30e9
	MaxDiskTellCount = 3
)

// DiskWatch decides whether a disk hangs. Its inputs are the time and the numbers of writes that began and came back.
//
// Only progress counts. A write that comes back, however late, shows that the disk works: a spike of load must not move
// leaderships. What counts against the disk is time in which writes waited and none came back. It counts only as far as
// the watch itself was running: a process that was stopped, or got no processor, cannot know that no write came back.
//
//	        1/5 patience             patience                    FailedNs
//	good ───────────────► slow ───────────────► hung ─────────────────────────► failed
//	  ▲  2 patiences calm  │ ▲   a completion     │        a completion            │
//	  └────────────────────┘ └────────────────────┴────────────────────────────────┘
//	     (6 after a hang)
//
// The zero value is not usable; see NewDiskWatch. One goroutine uses a DiskWatch; it has no lock.
type DiskWatch struct {
	cfg         DiskConfig
	state       DiskState
	at          int64  // time of the last Step
	begun, done uint64 // totals at the last Step
	waitedNs    int64  // watched time since the last completion while writes waited
	idleNs      int64  // watched time since the last write, with none waiting
	calmNs      int64  // watched time since the disk was last slow or worse; used only while the state is not good
	calmWrites  uint64 // writes that came back in calmNs
	hung        bool   // the disk hung since it was last good

	handed   bool  // a hand-over was requested since the disk was last good
	nextHand int64 // when the next one may be requested
	handedAt int64 // when the last one was requested

	told  DiskState               // the state that other nodes were told last
	tells [MaxDiskTellCount]int64 // ring of the times at which they were told
	count uint64                  // how often they were told
}

// DiskVerdict is the result of a Step.
type DiskVerdict struct {
	State    DiskState
	Changed  bool  // State differs from that of the previous Step
	WaitedNs int64 // how long writes have waited without any completion
	Tell     bool  // tell other nodes State, and repeat it until they have received it
	HandOver bool  // this node should hand over its leaderships; set once per DiskHandOverEveryNs, see Kept
	Probe    bool  // begin a small write, unless one is under way
}

// NewDiskWatch returns a watch over a disk that is good at time now (ns, monotonic).
func NewDiskWatch(cfg DiskConfig, now int64) *DiskWatch {
	if cfg.PatienceNs <= 0 || cfg.FailedNs <= 0 || cfg.PollNs <= 0 || cfg.IdleNs <= 0 {
		panic("BUG: a watch over a disk without limits")
	}
	return &DiskWatch{cfg: cfg, at: now}
}

// Change replaces the limits from the next Step on.
func (w *DiskWatch) Change(cfg DiskConfig) { w.cfg = cfg }

// Step takes the time and the total numbers of writes that began and that came back; done <= begun.
func (w *DiskWatch) Step(now int64, begun, done uint64) DiskVerdict {
	// Time that was not watched does not count, see above. Two polls do, since a tick may be late.
	passed := min(max(0, now-w.at), 2*w.cfg.PollNs)
	w.at = now
	progress, waits := done-w.done, begun > done
	idle := progress == 0 && begun == w.begun && !waits
	longest := w.waitedNs // the wait that ended now, or that goes on
	switch {
	case progress > 0:
		w.waitedNs = 0
	case waits:
		w.waitedNs += passed
		longest = w.waitedNs
	}
	if w.idleNs += passed; !idle {
		w.idleNs = 0
	}
	w.begun, w.done = begun, done
	old := w.state
	w.judge(longest, passed, progress)
	v := DiskVerdict{State: w.state, Changed: w.state != old, WaitedNs: w.waitedNs}
	v.Tell = w.tell(now)
	v.HandOver = w.handsOver(now)
	v.Probe = !waits && (w.idleNs >= w.cfg.IdleNs ||
		w.state != DiskGood && w.idleNs >= w.cfg.PatienceNs/diskSlowFraction)
	return v
}

// judge computes the new state. longest is the wait that ended in this Step or goes on, passed the watched time since
// the last Step, and progress the number of writes that came back.
func (w *DiskWatch) judge(longest, passed int64, progress uint64) {
	slow := w.cfg.PatienceNs / diskSlowFraction
	switch {
	case w.waitedNs >= w.cfg.FailedNs && w.waitedNs >= w.cfg.PatienceNs:
		w.state, w.hung = DiskFailed, true
	case w.waitedNs >= w.cfg.PatienceNs:
		w.state, w.hung = DiskHung, true
	case w.waitedNs > 0 && w.state >= DiskHung: // it still hangs
	case longest >= slow || w.state >= DiskHung:
		w.state = DiskSlow
	case w.state == DiskSlow:
		w.calmNs += passed
		w.calmWrites += progress
		need := diskCalmPatiences * w.cfg.PatienceNs
		if w.hung {
			need = diskProvenPatiences * w.cfg.PatienceNs
		}
		if w.calmNs >= need && w.calmWrites >= diskProvenWrites {
			w.state, w.hung, w.handed = DiskGood, false, false
		}
		return
	}
	w.calmNs, w.calmWrites = 0, 0
}

// handsOver says whether to request a hand-over now.
func (w *DiskWatch) handsOver(now int64) bool {
	if w.state < DiskHung || w.handed && now < w.nextHand {
		return false
	}
	w.handed, w.handedAt, w.nextHand = true, now, now+DiskHandOverEveryNs
	return true
}

// Kept says that the last hand-over has ended and gave nothing away. The next one may then come sooner, because another
// node that can take a leadership may come back at any time.
func (w *DiskWatch) Kept() { w.nextHand = min(w.nextHand, w.handedAt+DiskKeptEveryNs) }

// tell says whether other nodes are told the state now: at most MaxDiskTellCount times in DiskTellSpanNs.
func (w *DiskWatch) tell(now int64) bool {
	if w.state == w.told {
		return false
	}
	oldest := &w.tells[w.count%MaxDiskTellCount]
	if w.count >= MaxDiskTellCount && now-*oldest < DiskTellSpanNs {
		return false
	}
	*oldest = now
	w.count++
	w.told = w.state
	return true
}
