package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/node/fold"
	"penstock/replicate"
	"penstock/segment"
	"penstock/tests/support/formattest"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

// sampleEntry has a different value in each field.
func sampleEntry() Entry {
	state := new(fold.Cursors)
	for _, ct := range []fold.Control{
		{Kind: fold.ChannelCreated, Channel: "c", ID: 2},
		{Kind: fold.Confirmed, Channel: "c", Ranges: []fold.IDRange{{From: 5, To: 8}}},
		{Kind: fold.ChannelPaused, Channel: "c", Flag: true},
	} {
		if err := state.ApplyAt(&ct, 0x22, 0); err != nil {
			panic(err)
		}
	}
	return Entry{
		ID: segment.Identity{Topic: uuid.UUID{0: 0xaa, 15: 0xbb}, Partition: 0x11},
		State: segment.State{
			Next: 0x21, NextID: 0x22, End: 0x2323, LastCRC: 0x24242424, Epoch: 0x25,
			Segment: 0x26, SegmentBase: 0x2700, SegmentCapacity: 1 << 20,
		},
		Committed: 0x20,
		Epochs:    []replicate.EpochStart{{Epoch: 0x24}, {Epoch: 0x25, Position: 0x1f, Offset: 0x2300}},
		Fold:      state,
	}
}

func TestFormatOfEntries(t *testing.T) {
	en := sampleEntry()
	p := Append(nil, &en)
	fields := map[string]uint64{
		"partition": uint64(en.ID.Partition),
		"next":      uint64(en.State.Next), "nextID": uint64(en.State.NextID), "end": uint64(en.State.End),
		"lastCRC": uint64(en.State.LastCRC), "epoch": uint64(en.State.Epoch),
		"segment": uint64(en.State.Segment), "segmentBase": uint64(en.State.SegmentBase),
		"segmentCapacity": uint64(en.State.SegmentCapacity), "committed": uint64(en.Committed),
	}
	end := 0
	for _, row := range formattest.Tables(t)["Entry"] {
		at, err := strconv.Atoi(row[0])
		size, serr := strconv.Atoi(row[1])
		if err != nil || serr != nil || at != end {
			t.Fatalf("FORMAT.md has %q, and the field before ends at %d", row, end)
		}
		end += size
		name, written := row[2], p[at:end]
		if name == "topic" {
			if !bytes.Equal(written, en.ID.Topic[:]) {
				t.Errorf("the topic is not at %d: % x", at, written)
			}
			continue
		}
		want, known := fields[name]
		if got := binary.LittleEndian.Uint64(append(bytes.Clone(written), 0, 0, 0, 0, 0, 0, 0, 0)); !known || got != want {
			t.Errorf("%s at %d is %#x, the entry has %#x", name, at, got, want)
		}
		delete(fields, name)
	}
	if len(fields) != 0 {
		t.Errorf("FORMAT.md does not have %v", slices.Sorted(maps.Keys(fields)))
	}
	fold := en.Fold.Append(nil)
	rest := replicate.AppendEpochs(nil, en.Epochs)
	rest = append(binary.LittleEndian.AppendUint32(rest, uint32(len(fold))), fold...)
	if !bytes.Equal(p[end:], rest) {
		t.Errorf("behind the fields are % x, not table, length and fold % x", p[end:], rest)
	}
	for _, row := range formattest.Tables(t)["Cut"] {
		if kind := map[string]int{"cutTruncate": cutTruncate, "cutReset": cutReset}[row[1]]; row[0] != strconv.Itoa(kind) {
			t.Errorf("FORMAT.md: %s is %s, in the code it is %d", row[1], row[0], kind)
		}
	}
}

// This version still writes the golden bytes in the same way, reads them as the values that were written, and refuses
// every proper prefix of them.
func TestGoldenCheckpoint(t *testing.T) {
	en := sampleEntry()
	empty := Entry{ID: segment.Identity{Topic: en.ID.Topic, Partition: 1}, Fold: new(fold.Cursors)}
	stored := formattest.Golden(t, "testdata/checkpoint-v2.hex", Append(Append(AppendCount(nil, 2), &en), &empty), *update)
	var got []Entry
	if err := Decode(stored, func(en *Entry) { got = append(got, *en) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !same(&got[0], &en) || !same(&got[1], &empty) {
		t.Errorf("it is read as %+v", got)
	}
	for n := 1; n < len(stored); n++ {
		if err := Decode(stored[:n], func(*Entry) {}); !errors.Is(err, ErrDecode) {
			t.Fatalf("%d bytes of %d: %v", n, len(stored), err)
		}
	}
}

func same(a, b *Entry) bool {
	return a.ID == b.ID && a.State == b.State && a.Committed == b.Committed && slices.Equal(a.Epochs, b.Epochs) &&
		bytes.Equal(a.Fold.Append(nil), b.Fold.Append(nil))
}

func TestGoldenCut(t *testing.T) {
	en := sampleEntry()
	stored := formattest.Golden(t, "testdata/cut-v2.hex", AppendCut(AppendCut(nil, false, &en), true, &en), *update)
	for i, payload := range [][]byte{stored[:len(stored)/2], stored[len(stored)/2:]} {
		got, reset, err := DecodeCut(payload)
		if err != nil || reset != (i == 1) || !same(&got, &en) {
			t.Errorf("record %d is read as %+v, %v (%v)", i, got, reset, err)
		}
		for n := range payload {
			if _, _, err := DecodeCut(payload[:n]); !errors.Is(err, ErrDecode) {
				t.Fatalf("record %d, %d bytes of %d: %v", i, n, len(payload), err)
			}
		}
	}
}

// For any bytes with a correct checksum, decoding either refuses an entry or returns one that encodes to the same
// bytes.
func FuzzEntry(f *testing.F) {
	en := sampleEntry()
	f.Add(Append(nil, &en))
	f.Add(Append(nil, &Entry{Fold: new(fold.Cursors)}))
	f.Fuzz(func(t *testing.T, p []byte) {
		en, rest, err := decodeEntry(p)
		if err != nil {
			if !errors.Is(err, ErrDecode) {
				t.Fatal(err)
			}
			return
		}
		if again := Append(nil, &en); !bytes.Equal(again, p[:len(p)-len(rest)]) {
			t.Fatalf("% x is written again as % x", p[:len(p)-len(rest)], again)
		}
	})
}
