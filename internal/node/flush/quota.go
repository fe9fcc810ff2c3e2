package flush

import (
	"errors"
	"slices"
	"sort"

	"penstock/segment"
)

// A quota counts what waits: the messages that some channel has not confirmed. To find them takes a look at the state
// of all channels and, for bytes, reads of segments. So the flusher does it at every tick, and soon after a put was
// refused; the committer adds what was appended since then.

// Waiting is what waited in a partition at a look, at least. It holds until a channel is made or set back: see
// Part.ForgetWaiting.
type Waiting struct {
	Messages uint64
	Bytes    int64          // of the batches that hold them; only if the topic has a quota on bytes
	End      segment.MsgID  // of the log at the look
	EndAt    segment.Offset // likewise

	forgotten uint64 // Part.forgotten at the look
}

// maxPassedRuns bounds the runs of confirmed messages that a look takes off the bytes that wait: the longest ones.
// Each costs some reads of indexes. The bytes of shorter runs between many messages that wait count.
const maxPassedRuns = 64

// AskQuotas makes the flusher look soon what waits. The committer calls it when a put was refused.
func (f *Flusher) AskQuotas() {
	f.quotasAsked.Store(true)
	f.WakeUp()
}

// learnQuotas looks at the partitions that have a quota.
func (f *Flusher) learnQuotas() {
	f.quotasAsked.Store(false)
	for p := range f.n.Parts {
		if l := p.owner.Limits(); l != nil && (l.RejectBytes != 0 || l.RejectCount != 0) {
			p.look(l.RejectBytes != 0)
		}
	}
}

// look finds what waits in the partition, with or without its bytes.
func (p *Part) look(bytes bool) {
	log := p.owner.Log()
	w := &Waiting{forgotten: p.forgotten.Load()}
	_, _, from := log.Start()
	from = max(from, p.Needed())
	var runs passedRuns
	passed := uint64(0)
	end, endAt, carried := p.owner.EachPassed(from, func(begin, end segment.MsgID) {
		passed += uint64(end - begin)
		if bytes {
			runs.add(begin, end)
		}
	})
	if end < from {
		return // the log was cut meanwhile
	}
	w.End, w.EndAt, w.Messages = end, endAt, uint64(end-from)-passed+uint64(carried)
	if bytes {
		at, _, err := log.Seek(from)
		if err != nil && !errors.Is(err, segment.ErrAtEnd) {
			return // below the log's start, which then counts; or unreadable, which others report
		}
		w.Bytes = int64(max(0, endAt-at))
		for _, r := range runs {
			w.Bytes -= bytesOf(log, r.begin, r.end)
		}
	}
	p.waiting.Store(w)
}

// passedRun is the messages [begin, end), which every channel has confirmed.
type passedRun struct{ begin, end segment.MsgID }

func (r passedRun) count() segment.MsgID { return r.end - r.begin }

// passedRuns are the longest maxPassedRuns runs.
type passedRuns []passedRun

func (rs *passedRuns) add(begin, end segment.MsgID) {
	r := passedRun{begin, end}
	if len(*rs) < maxPassedRuns {
		*rs = append(*rs, r)
		return
	}
	shortest := 0
	for i := range *rs {
		if (*rs)[i].count() < (*rs)[shortest].count() {
			shortest = i
		}
	}
	if r.count() > (*rs)[shortest].count() {
		*rs = append(slices.Delete(*rs, shortest, shortest+1), r)
	}
}

// bytesOf returns the bytes of the batches that hold messages from begin to end, which is exclusive, and no others. It
// returns 0 if they cannot be found.
func bytesOf(log *segment.Log, begin, end segment.MsgID) int64 {
	to, last, err := log.Seek(end)
	if err != nil && !errors.Is(err, segment.ErrAtEnd) || last <= begin {
		return 0
	}
	from, first, err := log.Seek(begin)
	if err == nil && first < begin { // its batch holds earlier messages
		skip := sort.Search(int(last-begin), func(i int) bool {
			_, first, err := log.Seek(begin + segment.MsgID(i))
			return err == nil && first >= begin
		})
		from, _, err = log.Seek(begin + segment.MsgID(skip))
	}
	if err != nil {
		return 0
	}
	return int64(max(0, to-from))
}
