package machine

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/transcripttest"
	"penstock/segment"
)

var update = flag.Bool("update", false, "rewrite transcripts")

var partitionSizes = segment.Sizes{MinSegmentBytes: 4096, MaxSegmentBytes: 16384}

func stepPartition(p *Partition, ev PartitionEvent) PartitionResult {
	var res PartitionResult
	p.Step(&ev, &res)
	return res
}

// B5, B20 and invariant 7, as far as the machine decides them: what may be appended.
func TestPartitionAdmits(t *testing.T) {
	disk := errors.New("the disk failed")
	cases := []struct {
		name  string
		state segment.State
		first []PartitionEvent
		put   PartitionEvent
		want  error
	}{
		{"an ordinary put", segment.State{}, nil, PartitionEvent{Count: 1}, nil},
		{
			"no space",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionSpace, Err: ErrNoSpace}},
			PartitionEvent{Count: 1},
			ErrNoSpace,
		},
		{
			"no space, but a confirmation",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionSpace, Err: ErrNoSpace}},
			PartitionEvent{Control: true},
			nil,
		},
		{
			"space again",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionSpace, Err: ErrNoSpace}, {Kind: PartitionSpace}},
			PartitionEvent{Count: 1},
			nil,
		},
		{
			"corrupt",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionFault, Err: ErrReadOnly}},
			PartitionEvent{Count: 1},
			ErrReadOnly,
		},
		{
			"corrupt, a confirmation",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionFault, Err: ErrReadOnly}},
			PartitionEvent{Control: true},
			ErrReadOnly,
		},
		{
			"the first corruption stays",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionFault, Err: ErrReadOnly}, {Kind: PartitionFault, Err: disk}},
			PartitionEvent{Count: 1},
			ErrReadOnly,
		},
		{
			"a disk fault outdoes corruption",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionFault, Err: ErrReadOnly}, {Kind: PartitionFault, Flag: true, Err: disk}},
			PartitionEvent{Count: 1},
			disk,
		},
		{
			"corruption does not hide a disk fault",
			segment.State{},
			[]PartitionEvent{{Kind: PartitionFault, Flag: true, Err: disk}, {Kind: PartitionFault, Err: ErrReadOnly}},
			PartitionEvent{Count: 1},
			disk,
		},
		{"the last ids", segment.State{NextID: segment.MaxMsgID - 10}, nil, PartitionEvent{Count: 10}, nil},
		{"ids used up", segment.State{NextID: segment.MaxMsgID - 10}, nil, PartitionEvent{Count: 11}, ErrReadOnly},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p := NewPartition(tc.state, partitionSizes)
			for _, ev := range tc.first {
				stepPartition(p, ev)
			}
			before := p.State()
			tc.put.Kind = PartitionPut
			if got := stepPartition(p, tc.put).Err; !errors.Is(got, tc.want) || (got == nil) != (tc.want == nil) {
				t.Errorf("answered %v, want %v", got, tc.want)
			}
			if p.State() != before {
				t.Errorf("asking changed the log from %+v to %+v", before, p.State())
			}
		})
	}
}

// Calls that must never happen panic, before they can affect the disk.
func TestPartitionRefusesBugs(t *testing.T) {
	cases := []struct {
		name  string
		steps []PartitionEvent
	}{
		{"no kind", []PartitionEvent{{}}},
		{"append without place", []PartitionEvent{{Kind: PartitionAppend, Bytes: 100}}},
		{"append twice", []PartitionEvent{
			{Kind: PartitionPlace, Purpose: PurposeEpochStart, Bytes: 100},
			{Kind: PartitionAppend, Purpose: PurposeEpochStart, Bytes: 100},
			{Kind: PartitionAppend, Purpose: PurposeEpochStart, Bytes: 100},
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("ended with %q, want a panic that begins with BUG:", text)
				}
			}()
			p := NewPartition(segment.State{}, partitionSizes)
			for _, ev := range tc.steps {
				stepPartition(p, ev)
			}
		})
	}
}

// B13, B15, B21, invariants 1 and 3, for random sequences of a committer's calls: groups of several batches, outcomes
// that come late but in order, and sometimes a restart from the durable state.
func TestPartitionInvariants(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := partitionWalk{t: t, seed: seed, rng: rng, p: NewPartition(segment.State{}, partitionSizes)}
		for range 300 {
			w.step()
		}
	}
}

type partitionWalk struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	p    *Partition
	past []segment.State // the durable state, and then the state after each append that is not durable yet
}

func (w *partitionWalk) step() {
	if len(w.past) == 0 {
		w.past = append(w.past, w.p.State())
	}
	switch w.rng.IntN(8) {
	case 0, 1: // a group became durable
		w.past = w.past[w.rng.IntN(len(w.past)):]
	case 2: // the process restarts
		if w.rng.IntN(4) == 0 {
			w.p = NewPartition(w.past[0], partitionSizes)
			w.past = w.past[:1]
		}
	default:
		w.append(100+w.rng.IntN(6000), uint32(w.rng.IntN(4)))
	}
}

// append does what the committer does: it first appends the batches that must come before this one.
func (w *partitionWalk) append(bytes int, count uint32) {
	res := stepPartition(w.p, PartitionEvent{Kind: PartitionPlace, Purpose: PurposeData, Bytes: bytes})
	for rounds := 0; res.First != PurposeData; rounds++ {
		if rounds == 2 {
			w.t.Fatalf("seed %d: an epoch start and a checkpoint are not enough to place a batch of %d bytes: %+v",
				w.seed, bytes, w.p.State())
		}
		own := res.First
		before := w.p.State()
		res = stepPartition(w.p, PartitionEvent{Kind: PartitionPlace, Purpose: own, Bytes: 120, NextBytes: bytes})
		w.appended(before, res.Placement, own, 120, 0)
		if own == PurposeEpochStart && w.p.State().Epoch != before.Epoch+1 {
			w.t.Fatalf("seed %d: the epoch went from %d to %d", w.seed, before.Epoch, w.p.State().Epoch)
		}
		res = stepPartition(w.p, PartitionEvent{Kind: PartitionPlace, Purpose: PurposeData, Bytes: bytes})
	}
	w.appended(w.p.State(), res.Placement, PurposeData, bytes, count)
}

func (w *partitionWalk) appended(before segment.State, at Placement, purpose Purpose, bytes int, count uint32) {
	crc := w.rng.Uint32()
	stepPartition(w.p, PartitionEvent{Kind: PartitionAppend, Purpose: purpose, Bytes: bytes, Count: count, CRC: crc})
	st := w.p.State()
	w.past = append(w.past, st)
	switch {
	case at.Position != before.Next, at.FirstID != before.NextID, at.Offset != before.End, at.PrevCRC != before.LastCRC:
		w.t.Fatalf("seed %d: %+v does not continue %+v", w.seed, at, before)
	case st.Next != before.Next+1, st.NextID != before.NextID+segment.MsgID(count),
		st.End != before.End+segment.Offset(bytes), st.LastCRC != crc:
		w.t.Fatalf("seed %d: appending %d bytes and %d messages made %+v of %+v", w.seed, bytes, count, st, before)
	case int64(st.End-st.SegmentBase) > st.SegmentCapacity:
		w.t.Fatalf("seed %d: the batch passes the end of its segment: %+v", w.seed, st)
	case at.Segment != before.Segment && (at.Segment != before.Segment+1 || at.SegmentBase != before.End ||
		purpose == PurposeData):
		w.t.Fatalf("seed %d: %+v does not begin the segment after %+v with a control batch", w.seed, at, before)
	}
}

// The transcript shows the machine's answers to a reader. Lines that begin with a word are events, indented lines are
// the results (rewritten by -update), and lines with # are for the reader.
func TestPartitionTranscript(t *testing.T) {
	transcripttest.Replay(t, filepath.Join("testdata", "partition.txt"), *update, playPartition)
}

func playPartition(t *testing.T, text string) string {
	var out strings.Builder
	p := NewPartition(segment.State{}, partitionSizes)
	transcripttest.Play(text, &out, func(words []string) {
		if words[0] == "restart" {
			p = NewPartition(p.State(), partitionSizes)
			return
		}
		playPartitionEvent(t, &out, p, words[0], transcripttest.Parse(t, words))
	})
	return out.String()
}

var purposes = map[string]Purpose{
	"": PurposeData, "data": PurposeData, "epoch-start": PurposeEpochStart, "checkpoint": PurposeCheckpoint,
}

func playPartitionEvent(t *testing.T, out *strings.Builder, p *Partition, word string, a transcripttest.Args) {
	kinds := map[string]PartitionEventKind{
		"put": PartitionPut, "place": PartitionPlace, "append": PartitionAppend,
		"space": PartitionSpace, "fault": PartitionFault,
	}
	kind, ok := kinds[word]
	if !ok {
		t.Fatalf("no such event: %v", a.Line)
	}
	ev := PartitionEvent{
		Kind: kind, Purpose: purposes[a.Values["for"]], Control: a.Has("control"), Flag: a.Has("disk"),
		Count: uint32(a.Int("count")), CRC: uint32(a.Int("crc")), Bytes: int(a.Int("bytes")), NextBytes: int(a.Int("next")),
	}
	if kind == PartitionFault {
		if ev.Err = ErrReadOnly; ev.Flag {
			ev.Err = ErrPoisoned
		}
	}
	if a.Has("full") {
		ev.Err = ErrNoSpace
	}
	res := stepPartition(p, ev)
	switch kind {
	case PartitionPut:
		fmt.Fprintf(out, "  %v\n", res.Err)
	case PartitionPlace:
		if res.First != ev.Purpose {
			for name, purpose := range purposes {
				if purpose == res.First {
					fmt.Fprintf(out, "  first: %s\n", name)
				}
			}
			return
		}
		at := &res.Placement
		fmt.Fprintf(out, "  position %d, id %d, offset %d, epoch %d, after crc %d, segment %d at %d of %d bytes\n",
			at.Position, at.FirstID, at.Offset, at.Epoch, at.PrevCRC, at.Segment, at.SegmentBase, at.SegmentCapacity)
	default:
		fmt.Fprintf(out, "  appended %d, next id %d, end %d, fault %v\n",
			p.State().Next, p.State().NextID, p.State().End, p.Fault() != nil)
	}
}

// Each leadership that the cluster grants begins with a batch of its own epoch, even if nothing happened since the
// previous one.
func TestPartitionLeadsAgain(t *testing.T) {
	p := NewPartition(segment.State{}, partitionSizes)
	for epoch := segment.Epoch(3); epoch < 6; epoch++ {
		stepPartition(p, PartitionEvent{Kind: PartitionLead, Epoch: epoch})
		if res := stepPartition(p, PartitionEvent{
			Kind: PartitionPlace, Purpose: PurposeData, Bytes: 100,
		}); res.First != PurposeEpochStart {
			t.Fatalf("epoch %d begins with purpose %d", epoch, res.First)
		}
		res := stepPartition(p, PartitionEvent{Kind: PartitionPlace, Purpose: PurposeEpochStart, Bytes: 100})
		stepPartition(p, PartitionEvent{Kind: PartitionAppend, Purpose: PurposeEpochStart, Bytes: 100})
		if res.Placement.Epoch != epoch || p.State().Epoch != epoch {
			t.Fatalf("epoch %d: its first batch is of epoch %d", epoch, res.Placement.Epoch)
		}
		if res := stepPartition(p, PartitionEvent{
			Kind: PartitionPlace, Purpose: PurposeData, Bytes: 100,
		}); res.First != PurposeData || res.Placement.Epoch != epoch {
			t.Fatalf("epoch %d: data follows with %+v", epoch, res)
		}
	}
}
