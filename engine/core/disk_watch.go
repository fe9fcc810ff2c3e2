package core

import "fmt"

// DiskState is how a node's disk answers. The order is that of preference: lower is better.
type DiskState uint8

const (
	DiskGood   DiskState = iota
	DiskSlow             // a write took long, or the disk hung a while ago and is not proven good yet
	DiskHung             // nothing came back for DiskConfig.PatienceNs while writes waited
	DiskFailed           // and for DiskConfig.FailedNs
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
	PatienceNs int64 // without any completion while writes wait: the disk hangs
	FailedNs   int64 // and it has failed
	PollNs     int64 // how often Step is called
	IdleNs     int64 // after how long without a write an idle disk is asked: DiskProbeIdleNs, but in simulations
}

// What follows from the patience, and limits of a DiskWatch.
const (
	// A fifth of the patience without a completion is slow.
	diskSlowFraction = 5
	// A disk that was slow is good again after two patiences without that, one that hung after six.
	diskCalmPatiences   = 2
	diskProvenPatiences = 6
	// and so many writes have come back.
	diskProvenWrites = 5

	// DiskProbeIdleNs is after how long without a write an idle disk is asked.
	DiskProbeIdleNs = 10e9
	// DiskHandOverEveryNs lies at least between two hand-overs, unless the disk was proven good in between.
	DiskHandOverEveryNs = 3 * 60e9
	// DiskKeptEveryNs is enough after a hand-over that gave nothing away: nobody could take it.
	DiskKeptEveryNs = 30e9
	// In DiskTellSpanNs others are told of at most MaxDiskTellCount changes.
	DiskTellSpanNs   = 30e9
	MaxDiskTellCount = 3
)

// DiskWatch decides whether a disk hangs. It is fed with the time and with how many writes began and came back.
//
// What counts is progress: a write that comes back, however late, shows that the disk works, and a spike of load must
// not move leaderships. Only time in which nothing at all came back while something waited counts, and only as far as
// the watch itself ran: a process that was stopped, or got no processor, has not seen that nothing came.
//
//	        1/5 patience             patience                    FailedNs
//	good ───────────────► slow ───────────────► hung ─────────────────────────► failed
//	  ▲  2 patiences calm  │ ▲   a completion     │        a completion            │
//	  └────────────────────┘ └────────────────────┴────────────────────────────────┘
//	     (6 after a hang)
//
// The zero value is not usable; see NewDiskWatch. One goroutine uses it.
type DiskWatch struct {
	cfg         DiskConfig
	state       DiskState
	at          int64  // of the last Step
	begun, done uint64 // as seen then
	waitedNs    int64  // seen time since the last completion while something waited
	idleNs      int64  // seen time since the last write, with nothing waiting
	calmNs      int64  // seen time since the disk was slow or worse; only while it is not good
	calmWrites  uint64 // that came back in it
	hung        bool   // it hung since it was good

	handed   bool  // a hand-over was asked for since it was good
	nextHand int64 // when the next may be asked for
	handedAt int64

	told  DiskState               // what the others know
	tells [MaxDiskTellCount]int64 // when others were told last; ring
	count uint64                  // of tells
}

// DiskVerdict is what a Step led to.
type DiskVerdict struct {
	State    DiskState
	Changed  bool  // State is another one than after the Step before
	WaitedNs int64 // for how long nothing came back while something waited
	Tell     bool  // others should be told of State, again and again until they have heard
	HandOver bool  // this node should lead nothing that another can lead; said once per DiskHandOverEveryNs, see Kept
	Probe    bool  // a small write should be begun, if none is under way
}

// NewDiskWatch begins with a good disk at time now (ns, monotonic).
func NewDiskWatch(cfg DiskConfig, now int64) *DiskWatch {
	if cfg.PatienceNs <= 0 || cfg.FailedNs <= 0 || cfg.PollNs <= 0 || cfg.IdleNs <= 0 {
		panic("BUG: a watch over a disk without limits")
	}
	return &DiskWatch{cfg: cfg, at: now}
}

// State is what the last Step said.
func (w *DiskWatch) State() DiskState { return w.state }

// Step takes the totals of writes that began and that came back, done <= begun.
func (w *DiskWatch) Step(now int64, begun, done uint64) DiskVerdict {
	// What was not watched does not count: see above. Two polls are tolerated, since a tick may be late.
	passed := min(max(0, now-w.at), 2*w.cfg.PollNs)
	w.at = now
	progress, waits := done-w.done, begun > done
	idle := progress == 0 && begun == w.begun && !waits
	longest := w.waitedNs // of the wait that ended now, or that goes on
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
	v.Probe = !waits && (w.idleNs >= w.cfg.IdleNs || w.state != DiskGood && w.idleNs >= w.cfg.PatienceNs/diskSlowFraction)
	return v
}

// judge moves the state.
func (w *DiskWatch) judge(longest, passed int64, progress uint64) {
	slow := w.cfg.PatienceNs / diskSlowFraction
	switch {
	case w.waitedNs >= w.cfg.FailedNs && w.waitedNs >= w.cfg.PatienceNs:
		w.state, w.hung = DiskFailed, true
	case w.waitedNs >= w.cfg.PatienceNs:
		w.state, w.hung = DiskHung, true
	case w.waitedNs > 0 && w.state >= DiskHung: // still
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

func (w *DiskWatch) handsOver(now int64) bool {
	if w.state < DiskHung || w.handed && now < w.nextHand {
		return false
	}
	w.handed, w.handedAt, w.nextHand = true, now, now+DiskHandOverEveryNs
	return true
}

// Kept says that the hand-over which was asked for last has ended and gave nothing away: others that can take something
// may come back at any time.
func (w *DiskWatch) Kept() { w.nextHand = min(w.nextHand, w.handedAt+DiskKeptEveryNs) }

// tell says whether others hear of the state now: at most MaxDiskTellCount times in DiskTellSpanNs.
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
