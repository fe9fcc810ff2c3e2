package segment

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The tables of FORMAT.md equal the constants of the code: same offsets, same sizes, no gap, no field that only one
// has.
func TestFormatTables(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	code := map[string]int{
		"segMagic": offSegMagic, "segVersion": offSegVersion, "segFlags": offSegFlags, "segHeaderBytes": offSegHeaderBytes,
		"segTopic": offSegTopic, "segPartition": offSegPartition, "segNumber": offSegNumber,
		"segBaseOffset":  offSegBaseOffset,
		"segFirstOffset": offSegFirstOffset, "segFirstPosition": offSegFirstPosition, "segFirstID": offSegFirstID,
		"segCapacity": offSegCapacity, "segFirstAppended": offSegFirstAppended, "segReserved": offSegReserved,
		"segCRC":   offSegCRC,
		"idxMagic": offIdxMagic, "idxVersion": offIdxVersion, "idxReserved": offIdxReserved, "idxTopic": offIdxTopic,
		"idxPartition": offIdxPartition, "idxNumber": offIdxNumber, "idxFirstOffset": offIdxFirstOffset,
		"idxEndOffset": offIdxEndOffset,
		"idxCount":     offIdxCount, "idxLastCRC": offIdxLastCRC, "idxEntriesCRC": offIdxEntriesCRC, "idxCRC": offIdxCRC,
		"entryOffset": offEntryOffset, "entryPosition": offEntryPosition, "entryFirstID": offEntryFirstID,
		"entryAppended": offEntryAppended,
	}
	ends := map[string]int{
		"segCRC": segFieldsBytes, "idxCRC": idxHeaderBytes, "entryAppended": idxEntryBytes,
	}
	next := 0
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (\d+) \| (\w+) \|`).FindAllStringSubmatch(string(text), -1) {
		off, _ := strconv.Atoi(m[1])
		size, _ := strconv.Atoi(m[2])
		want, known := code[m[3]]
		if !known || off != want || off != next {
			t.Errorf("%s stands at %d, the code has it at %d (known: %v), the row before ends at %d",
				m[3], off, want, known, next)
		}
		delete(code, m[3])
		next = off + size
		if end, last := ends[m[3]]; last {
			if next != end {
				t.Errorf("the table of %s ends at %d, the code's at %d", m[3], next, end)
			}
			next = 0
		}
	}
	for name := range code {
		t.Errorf("%s is not in FORMAT.md", name)
	}
	for _, want := range []string{
		fmt.Sprintf("header block of %d bytes", SegmentHeaderBytes), fmt.Sprintf("A header of %d bytes", idxHeaderBytes),
		fmt.Sprintf("entries of %d bytes", idxEntryBytes),
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("FORMAT.md does not say %q", want)
		}
	}
}

func goldenSegHeader() segHeader {
	return segHeader{
		id: testIdentity, number: 1_234_567, starts: true, base: 1 << 40, first: 1<<40 + 500, firstPos: 77, firstID: 1 << 45,
		firstAppended: 1_700_000_000_000_000_000, capacity: 128 << 20,
	}
}

// golden returns a file of the first version. It is kept for ever and never rewritten.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "v1", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestGoldenFiles(t *testing.T) {
	h := goldenSegHeader()
	block := make([]byte, SegmentHeaderBytes)
	h.encode(block)
	want := golden(t, "header.seg")
	var back segHeader
	if err := back.decode(want); err != nil || back != h || !bytes.Equal(block, want) {
		t.Errorf("segment header: %v, %+v", err, back)
	}
	ih := indexHeader{id: testIdentity, number: 1_234_567, first: 1 << 40, end: 1<<40 + 300_000, lastCRC: 0xfeedf00d}
	entries := []indexEntry{
		{1 << 40, 77, 1 << 45, 5}, {1<<40 + 70_000, 78, 1<<45 + 10, 6}, {1<<40 + 140_000, 90, 1<<45 + 10, 6},
	}
	data := encodeIndex(&ih, entries)
	want = golden(t, "index.idx")
	gotHeader, got, err := decodeIndex(want)
	if err != nil || gotHeader != ih || fmt.Sprint(got) != fmt.Sprint(entries) || !bytes.Equal(data, want) {
		t.Errorf("index: %v, %+v, %v", err, gotHeader, got)
	}
}

// Any flipped bit of a header block or an index is detected.
func TestEveryBitFlipOfFilesIsDetected(t *testing.T) {
	h := goldenSegHeader()
	block := make([]byte, SegmentHeaderBytes)
	h.encode(block)
	for bit := range len(block) * 8 {
		block[bit/8] ^= 1 << (bit % 8)
		var back segHeader
		if back.decode(block) == nil {
			t.Fatalf("bit %d of byte %d of a segment header", bit%8, bit/8)
		}
		block[bit/8] ^= 1 << (bit % 8)
	}
	data := encodeIndex(&indexHeader{id: testIdentity, end: 100}, []indexEntry{{}, {50, 1, 1, 1}})
	for bit := range len(data) * 8 {
		data[bit/8] ^= 1 << (bit % 8)
		if _, _, err := decodeIndex(data); err == nil {
			t.Fatalf("bit %d of byte %d of an index", bit%8, bit/8)
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
}
