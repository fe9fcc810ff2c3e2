package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/engine/core"
	"penstock/engine/dir"
	"penstock/internal/formattest"
	"penstock/replicate"
	"penstock/segment"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

// sampleEntry has another value in each field.
func sampleEntry() (segment.Identity, entry) {
	fold := new(core.Cursors)
	for _, ct := range []core.Control{
		{Kind: core.ChannelCreated, Channel: "c", ID: 2},
		{Kind: core.Confirmed, Channel: "c", Ranges: []core.IDRange{{From: 5, To: 8}}},
		{Kind: core.ChannelPaused, Channel: "c", Flag: true},
	} {
		if err := fold.Apply(&ct, 0x22); err != nil {
			panic(err)
		}
	}
	return segment.Identity{Topic: uuid.UUID{0: 0xaa, 15: 0xbb}, Partition: 0x11}, entry{
		state: segment.State{
			Next: 0x21, NextID: 0x22, End: 0x2323, LastCRC: 0x24242424, Epoch: 0x25,
			Segment: 0x26, SegmentBase: 0x2700, SegmentCapacity: 1 << 20,
		},
		committed: 0x20,
		epochs:    []replicate.EpochStart{{Epoch: 0x24}, {Epoch: 0x25, Position: 0x1f, Offset: 0x2300}},
		fold:      fold,
	}
}

func TestFormatOfEntries(t *testing.T) {
	id, en := sampleEntry()
	p := appendEntry(nil, id, &en)
	fields := map[string]uint64{
		"partition": uint64(id.Partition),
		"next":      uint64(en.state.Next), "nextID": uint64(en.state.NextID), "end": uint64(en.state.End),
		"lastCRC": uint64(en.state.LastCRC), "epoch": uint64(en.state.Epoch),
		"segment": uint64(en.state.Segment), "segmentBase": uint64(en.state.SegmentBase),
		"segmentCapacity": uint64(en.state.SegmentCapacity), "committed": uint64(en.committed),
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
			if !bytes.Equal(written, id.Topic[:]) {
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
	fold := en.fold.Append(nil)
	rest := replicate.AppendEpochs(nil, en.epochs)
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

// The keys of the two JSON files are those of FORMAT.md, in its order.
func TestFormatOfFiles(t *testing.T) {
	found := formattest.Tables(t)
	formats := map[string]int{dir.NodeFile: dir.FormatOf(NewestLevel), dir.TopicFile: dir.TopicFormat}
	for heading, file := range map[string]any{
		dir.NodeFile:  dir.Node{Format: dir.FormatOf(NewestLevel), Cluster: uuid.UUID{1}},
		dir.TopicFile: dir.Topic{Format: dir.TopicFormat, Settings: TopicSettings{Version: 1}},
	} {
		var keys []string
		for f := range reflect.TypeOf(file).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			keys = append(keys, name)
		}
		var listed []string
		for _, row := range found[heading] {
			listed = append(listed, row[0])
		}
		if !slices.Equal(keys, listed) {
			t.Errorf("%s has %q, FORMAT.md lists %q", heading, keys, listed)
		}
		if len(found[heading]) == 0 || found[heading][0][1] != strconv.Itoa(formats[heading]) {
			t.Errorf("FORMAT.md does not say that the format of %s is %d", heading, formats[heading])
		}
		data, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		var written map[string]any
		if err := json.Unmarshal(data, &written); err != nil || len(written) != len(listed) {
			t.Errorf("%s is written with %v (%v)", heading, slices.Sorted(maps.Keys(written)), err)
		}
	}
}

// What a version wrote into the commit log is written the same way and read as what it was, and no part of it is taken
// for the whole.
func TestGoldenCheckpoint(t *testing.T) {
	id, en := sampleEntry()
	empty := segment.Identity{Topic: id.Topic, Partition: 1}
	p := binary.LittleEndian.AppendUint32(nil, 2)
	p = appendEntry(p, id, &en)
	p = appendEntry(p, empty, &entry{fold: new(core.Cursors)})
	stored := formattest.Golden(t, "testdata/checkpoint-v2.hex", p, *update)

	r := &recovery{checkpoint: stored, parts: map[segment.Identity]*recovered{}}
	if err := r.decodeCheckpoint(); err != nil {
		t.Fatal(err)
	}
	got := r.parts[id]
	if len(r.order) != 2 || got == nil || r.parts[empty] == nil {
		t.Fatalf("it is read as %v", r.parts)
	}
	if got.base != en.state || got.st != en.state || got.committed != en.committed ||
		!slices.Equal(got.epochs.Entries(), en.epochs) || !bytes.Equal(got.fold.Append(nil), en.fold.Append(nil)) {
		t.Errorf("an entry is read as %+v", got)
	}
	for n := 1; n < len(stored); n++ {
		r := &recovery{checkpoint: stored[:n], parts: map[segment.Identity]*recovered{}}
		if err := r.decodeCheckpoint(); !errors.Is(err, errCheckpoint) {
			t.Fatalf("%d bytes of %d: %v", n, len(stored), err)
		}
	}
}

func TestGoldenCut(t *testing.T) {
	id, en := sampleEntry()
	var both []byte
	for _, kind := range []byte{cutTruncate, cutReset} {
		both = appendEntry(append(both, kind, 0, 0, 0, 0, 0, 0, 0), id, &en)
	}
	stored := formattest.Golden(t, "testdata/cut-v2.hex", both, *update)
	for i, payload := range [][]byte{stored[:len(stored)/2], stored[len(stored)/2:]} {
		rp := &recovered{id: id}
		if err := rp.cut(&clog.Record{Payload: payload}); err != nil {
			t.Fatal(err)
		}
		if anew := i == 1; rp.restarted != anew || rp.st != en.state || rp.committed != en.committed {
			t.Errorf("record %d is read as %+v", i, rp)
		}
		for n := range payload {
			if err := new(recovered).cut(&clog.Record{Payload: payload[:n]}); !errors.Is(err, errCheckpoint) {
				t.Fatalf("record %d, %d bytes of %d: %v", i, n, len(payload), err)
			}
		}
	}
}

// Whatever bytes have a right checksum: an entry is refused, or read as what is written the same way again.
func FuzzEntry(f *testing.F) {
	id, en := sampleEntry()
	f.Add(appendEntry(nil, id, &en))
	f.Add(appendEntry(nil, id, &entry{fold: new(core.Cursors)}))
	f.Fuzz(func(t *testing.T, p []byte) {
		id, en, rest, err := decodeEntry(p)
		if err != nil {
			if !errors.Is(err, errCheckpoint) {
				t.Fatal(err)
			}
			return
		}
		if again := appendEntry(nil, id, &en); !bytes.Equal(again, p[:len(p)-len(rest)]) {
			t.Fatalf("% x is written again as % x", p[:len(p)-len(rest)], again)
		}
	})
}
