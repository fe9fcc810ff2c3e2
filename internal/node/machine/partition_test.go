package machine

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"penstock/segment"
	"penstock/tests/support/transcripttest"
)

var update = flag.Bool("update", false, "rewrite transcripts")

var partitionSizes = segment.Sizes{MinSegmentBytes: 4096, MaxSegmentBytes: 16384}

// B5, B20 and invariant 7, as far as the machine decides them: what may be appended.
func TestPartitionAdmits(t *testing.T) {
	disk := errors.New("the disk failed")
	full := func(p *Partition) { p.SetFull(ErrNoSpace) }
	corrupt := func(p *Partition) { p.Corrupt(ErrReadOnly) }
	cases := []struct {
		name    string
		state   segment.State
		first   func(p *Partition)
		count   uint32
		control bool
		want    error
	}{
		{"an ordinary put", segment.State{}, nil, 1, false, nil},
		{"no space", segment.State{}, full, 1, false, ErrNoSpace},
		{"no space, but a confirmation", segment.State{}, full, 0, true, nil},
		{"space again", segment.State{}, func(p *Partition) { full(p); p.SetFull(nil) }, 1, false, nil},
		{"corrupt", segment.State{}, corrupt, 1, false, ErrReadOnly},
		{"corrupt, a confirmation", segment.State{}, corrupt, 0, true, ErrReadOnly},
		{
			"the first corruption stays",
			segment.State{},
			func(p *Partition) { corrupt(p); p.Corrupt(disk) },
			1, false, ErrReadOnly,
		},
		{
			"a disk fault outdoes corruption",
			segment.State{},
			func(p *Partition) { corrupt(p); p.Poison(disk) },
			1, false, disk,
		},
		{
			"corruption does not hide a disk fault",
			segment.State{},
			func(p *Partition) { p.Poison(disk); corrupt(p) },
			1, false, disk,
		},
		{"the last ids", segment.State{NextID: segment.MaxMsgID - 10}, nil, 10, false, nil},
		{"ids used up", segment.State{NextID: segment.MaxMsgID - 10}, nil, 11, false, ErrReadOnly},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p := NewPartition(tc.state, partitionSizes)
			if tc.first != nil {
				tc.first(p)
			}
			before := p.State()
			if got := p.Admit(tc.count, tc.control); !errors.Is(got, tc.want) || (got == nil) != (tc.want == nil) {
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
		calls func(p *Partition)
	}{
		{"append without place", func(p *Partition) { p.Appended(PurposeData, 100, 0, 0) }},
		{"append twice", func(p *Partition) {
			p.Place(PurposeEpochStart, 100, 0)
			p.Appended(PurposeEpochStart, 100, 0, 0)
			p.Appended(PurposeEpochStart, 100, 0, 0)
		}},
		{"an epoch that the log has", func(p *Partition) { p.Lead(0) }},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("ended with %q, want a panic that begins with BUG:", text)
				}
			}()
			p := NewPartition(segment.State{}, partitionSizes)
			tc.calls(p)
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
	first, at := w.p.Place(PurposeData, bytes, 0)
	for rounds := 0; first != PurposeData; rounds++ {
		if rounds == 2 {
			w.t.Fatalf("seed %d: an epoch start and a checkpoint are not enough to place a batch of %d bytes: %+v",
				w.seed, bytes, w.p.State())
		}
		own := first
		before := w.p.State()
		_, at = w.p.Place(own, 120, bytes)
		w.appended(before, at, own, 120, 0)
		if own == PurposeEpochStart && w.p.State().Epoch != before.Epoch+1 {
			w.t.Fatalf("seed %d: the epoch went from %d to %d", w.seed, before.Epoch, w.p.State().Epoch)
		}
		first, at = w.p.Place(PurposeData, bytes, 0)
	}
	w.appended(w.p.State(), at, PurposeData, bytes, count)
}

func (w *partitionWalk) appended(before segment.State, at Placement, purpose Purpose, bytes int, count uint32) {
	crc := w.rng.Uint32()
	w.p.Appended(purpose, bytes, count, crc)
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
	purpose := purposes[a.Values["for"]]
	switch word {
	case "put":
		fmt.Fprintf(out, "  %v\n", p.Admit(uint32(a.Int("count")), a.Has("control")))
		return
	case "place":
		first, at := p.Place(purpose, int(a.Int("bytes")), int(a.Int("next")))
		if first != purpose {
			for name, purpose := range purposes {
				if purpose == first {
					fmt.Fprintf(out, "  first: %s\n", name)
				}
			}
			return
		}
		fmt.Fprintf(out, "  position %d, id %d, offset %d, epoch %d, after crc %d, segment %d at %d of %d bytes\n",
			at.Position, at.FirstID, at.Offset, at.Epoch, at.PrevCRC, at.Segment, at.SegmentBase, at.SegmentCapacity)
		return
	case "append":
		p.Appended(purpose, int(a.Int("bytes")), uint32(a.Int("count")), uint32(a.Int("crc")))
	case "space":
		if p.SetFull(nil); a.Has("full") {
			p.SetFull(ErrNoSpace)
		}
	case "fault":
		if a.Has("disk") {
			p.Poison(ErrPoisoned)
		} else {
			p.Corrupt(ErrReadOnly)
		}
	default:
		t.Fatalf("no such call: %v", a.Line)
	}
	fmt.Fprintf(out, "  appended %d, next id %d, end %d, fault %v\n",
		p.State().Next, p.State().NextID, p.State().End, p.fault != nil)
}

// Each leadership that the cluster grants begins with a batch of its own epoch, even if nothing happened since the
// previous one.
func TestPartitionLeadsAgain(t *testing.T) {
	p := NewPartition(segment.State{}, partitionSizes)
	for epoch := segment.Epoch(3); epoch < 6; epoch++ {
		p.Lead(epoch)
		if first, _ := p.Place(PurposeData, 100, 0); first != PurposeEpochStart {
			t.Fatalf("epoch %d begins with purpose %d", epoch, first)
		}
		_, at := p.Place(PurposeEpochStart, 100, 0)
		p.Appended(PurposeEpochStart, 100, 0, 0)
		if at.Epoch != epoch || p.State().Epoch != epoch {
			t.Fatalf("epoch %d: its first batch is of epoch %d", epoch, at.Epoch)
		}
		if first, at := p.Place(PurposeData, 100, 0); first != PurposeData || at.Epoch != epoch {
			t.Fatalf("epoch %d: data follows with %d, %+v", epoch, first, at)
		}
	}
}
