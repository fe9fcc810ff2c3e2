package clog

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/formattest"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestFormatTables(t *testing.T) {
	found := formattest.Tables(t)
	formattest.Layout(t, found["Group header"], GroupHeaderBytes,
		offMagic, offVersion, offBlockShift, offHeaderBytes, offStore, offFile, offSeq, offDurableLag, offOldestLag,
		offGroupBytes, offRecords, offPrevCRC, offGroupCRC)
	formattest.Layout(t, found["Record header"], RecordHeaderBytes,
		recType, recFlags, recUncommitted, recBytes, recGroupSeq, recTopic, recPartition, recSegment, recOffset,
		recPayloadCRC, recCRC)
	for i, row := range found["Record types"] {
		if typ := Type(i + 1); row[0] != strconv.Itoa(i+1) || row[1] != typ.String() {
			t.Errorf("type %d is %q, the code says %q", i+1, row[1], typ)
		}
	}
	if n := len(found["Record types"]); n != int(maxType) {
		t.Errorf("%d types, the code has %d", n, maxType)
	}
	formattest.Numbers(t, found["Limits"], map[string]int{
		"GroupHeaderBytes": GroupHeaderBytes, "RecordHeaderBytes": RecordHeaderBytes, "LogMarkBytes": LogMarkBytes,
		"MaxPayloadBytes": MaxPayloadBytes, "MaxCheckpointChunkBytes": MaxCheckpointChunkBytes,
	})
}

// TestFormatDecisions compares the truth table in the text with the one in the code, and demands exactly one row for
// every case.
func TestFormatDecisions(t *testing.T) {
	names := map[place]string{placeValid: "valid", placeDamaged: "damaged", placeOther: "other", placeNothing: "nothing"}
	verdictNames := map[verdict]string{
		verdictAccept: "accept", verdictFollow: "follow", verdictCut: "cut", verdictCorrupt: "corrupt",
	}
	rows := formattest.Tables(t)["What recovery decides"]
	seen := make(map[verdict]bool)
	for p := range places {
		for _, next := range []bool{false, true} {
			for _, promised := range []bool{false, true} {
				n := 0
				for i := range decisions {
					if decisions[i].holds(p, next, promised) {
						n++
					}
				}
				if n != 1 {
					t.Fatalf("%s, next %v, promised %v: %d rules hold", names[p], next, promised, n)
				}
				v := decide(p, next, promised)
				seen[v] = true
				prose := ""
				for _, row := range rows {
					if strings.Contains(row[0], names[p]) && says(row[1], next) && says(row[2], promised) {
						prose += row[3]
					}
				}
				if !strings.HasPrefix(prose, verdictNames[v]) {
					t.Errorf("%s, next %v, promised %v: the code says %s, FORMAT.md %q",
						names[p], next, promised, verdictNames[v], prose)
				}
			}
		}
	}
	if len(seen) != int(verdicts) {
		t.Errorf("only %d of %d verdicts are possible", len(seen), verdicts)
	}
}

func says(cell string, v bool) bool { return cell == "any" || v == (cell == "yes") }

// goldenFile is a file of this version, the worked example of FORMAT.md.
func goldenFile() []byte {
	file := make([]byte, 3*aio.BlockBytes)
	h := groupHeader{BlockShift: 12, Store: testStore, Oldest: 7}
	build := func(block int, seq, durable uint64, add func(g *Group)) {
		var g Group
		data := file[block*aio.BlockBytes : (block+1)*aio.BlockBytes]
		g.open(nil, data, len(data), 9, seq)
		add(&g)
		h.Durable, h.PrevCRC = durable, h.CRC
		g.seal(&h)
	}
	build(0, 41, 40, func(g *Group) {
		copy(g.add(&Placement{Type: Checkpoint}, flagLast, 5), "state")
	})
	build(1, 42, 41, func(g *Group) {
		p := Placement{Topic: testStore, Partition: 3, Segment: 2, Offset: 1 << 33}
		p.Type = Batch
		fill(g.add(&p, 0, 200), 5)
		p.Type = Truncate
		copy(g.add(&p, 0, 3), "cut")
		p.Type = Tombstone
		g.add(&p, 0, 0)
	})
	build(2, 43, 42, func(*Group) {})
	return file
}

// TestGolden keeps version 1 readable for ever: the bytes in testdata never change.
func TestGolden(t *testing.T) {
	const name = "testdata/v1.hex"
	got := goldenFile()
	if *update {
		if err := os.WriteFile(name, dump(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want := undump(t, text)
	if !bytes.Equal(got, want) {
		t.Error("the encoder does not write version 1 any more")
	}
	types := []Type{}
	for off := 0; off < len(want); off += aio.BlockBytes {
		var h groupHeader
		p := want[off : off+aio.BlockBytes]
		if s := h.decode(p); s != headerValid || h.File != 9 || h.Oldest != 7 || h.Durable != h.Seq-1 ||
			h.Store != testStore {
			t.Fatalf("block %d: state %d, %+v", off, s, h)
		}
		if at, err := verifyGroup(&h, p); err != nil {
			t.Fatalf("byte %d: %v", off+at, err)
		}
		err := eachRecord(&h, p, func(r *recordHeader, payload []byte) error {
			types = append(types, r.Type)
			if r.Type == Truncate && (string(payload) != "cut" || r.Partition != 3 || r.Segment != 2 || r.Offset != 1<<33 ||
				r.Topic != testStore) {
				t.Errorf("%+v %q", r, payload)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(types) != 4 || types[0] != Checkpoint || types[1] != Batch || types[2] != Truncate || types[3] != Tombstone {
		t.Errorf("records: %v", types)
	}
}

// dump formats p as hex, 32 bytes per line after their offset, without lines of zeros. The last offset is the size.
func dump(p []byte) []byte {
	var out bytes.Buffer
	for off := 0; off < len(p); off += 32 {
		if line := p[off : off+32]; !bytes.Equal(line, make([]byte, 32)) {
			out.WriteString(strconv.FormatInt(int64(off), 16) + " " + hex.EncodeToString(line) + "\n")
		}
	}
	out.WriteString(strconv.FormatInt(int64(len(p)), 16) + "\n")
	return out.Bytes()
}

func undump(t *testing.T, text []byte) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(string(text)) {
		at, data, _ := strings.Cut(strings.TrimSpace(line), " ")
		off, err := strconv.ParseInt(at, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		p, err := hex.DecodeString(data)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, make([]byte, int(off)-len(out))...), p...)
	}
	return out
}

// TestFlipEveryBit flips each bit of a group of every record type: every bit of its blocks is covered by a check (B31).
func TestFlipEveryBit(t *testing.T) {
	group := goldenFile()[aio.BlockBytes : 2*aio.BlockBytes]
	var h groupHeader
	h.decode(group)
	want := h
	for bit := range len(group) * 8 {
		group[bit/8] ^= 1 << (bit % 8)
		if h.decode(group) == headerValid && h == want {
			if _, err := verifyGroup(&h, group); err == nil {
				t.Fatalf("bit %d of byte %d is not covered", bit%8, bit/8)
			}
		}
		group[bit/8] ^= 1 << (bit % 8)
	}
}

// TestTruncateEveryByte cuts a group at every byte and fills the rest with zeros, as a torn write to a prepared file
// does (B29, B36).
func TestTruncateEveryByte(t *testing.T) {
	group := goldenFile()[aio.BlockBytes : 2*aio.BlockBytes]
	var h groupHeader
	h.decode(group)
	for n := 0; n < int(h.Bytes); n++ {
		torn := make([]byte, len(group))
		copy(torn, group[:n])
		if bytes.Equal(torn, group) {
			continue // the bytes that were cut were zeros anyway
		}
		if h.decode(torn) == headerValid {
			if _, err := verifyGroup(&h, torn); err == nil {
				t.Fatalf("a group cut at byte %d verifies", n)
			}
		}
		h.decode(group)
	}
}
