package offline

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
)

// The decoders take any bytes: an error or a value, never a panic and never more memory than the input's.
func FuzzDecode(f *testing.F) {
	head := make([]byte, segment.SegmentHeaderBytes)
	copy(head, "PSEG\x01")
	binary.LittleEndian.PutUint16(head[6:], segment.SegmentHeaderBytes)
	binary.LittleEndian.PutUint32(head[84:], batch.Checksum(head[:84]))
	f.Add(head)
	index := make([]byte, 96)
	copy(index, "PIDX\x01")
	binary.LittleEndian.PutUint32(index[48:], 1)
	binary.LittleEndian.PutUint32(index[56:], batch.Checksum(index[64:]))
	binary.LittleEndian.PutUint32(index[60:], batch.Checksum(index[:60]))
	f.Add(index)
	checkpoint := make([]byte, 4+20+56+4+3)
	checkpoint[0] = 1
	checkpoint[4+20+56] = 3
	f.Add(checkpoint)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, p []byte) {
		if h, err := decodeSegmentHeader(p); err == nil && len(p) < segment.SegmentHeaderBytes {
			t.Errorf("a short header was accepted: %+v", h)
		}
		if x, err := decodeIndex(p); err == nil && len(p) != 64+32*len(x.Entries) {
			t.Errorf("%d entries from %d bytes", len(x.Entries), len(p))
		}
		if parts, err := decodeCheckpoint(p); err == nil && len(parts)*100 > len(p) {
			t.Errorf("%d partitions from %d bytes", len(parts), len(p))
		}
	})
}

func TestSeedsDecode(t *testing.T) {
	head := make([]byte, segment.SegmentHeaderBytes)
	copy(head, "PSEG\x01")
	binary.LittleEndian.PutUint16(head[6:], segment.SegmentHeaderBytes)
	binary.LittleEndian.PutUint64(head[32:], 1000)
	binary.LittleEndian.PutUint32(head[84:], batch.Checksum(head[:84]))
	h, err := decodeSegmentHeader(head)
	if err != nil || h.Base != 1000 || h.FileByte(1001) != segment.SegmentHeaderBytes+1 {
		t.Errorf("%+v, %v", h, err)
	}
	for _, at := range []int{0, 4, 5, 32, 84, 88, segment.SegmentHeaderBytes - 1} {
		bad := bytes.Clone(head)
		bad[at] ^= 0x80
		if _, err := decodeSegmentHeader(bad); err == nil {
			t.Errorf("byte %d may change", at)
		}
	}
}

func TestChain(t *testing.T) {
	c := expected{Position: 5, ID: 10}
	h := segment.Header{Position: 5, FirstID: 10, Count: 3, PrevCRC: 77, CRC: 88}
	if err := c.Next(&h); err != nil { // the checksum before is not known at the first batch
		t.Fatal(err)
	}
	for name, bad := range map[string]segment.Header{
		"position": {Position: 7, FirstID: 13, PrevCRC: 88},
		"id":       {Position: 6, FirstID: 14, PrevCRC: 88},
		"checksum": {Position: 6, FirstID: 13, PrevCRC: 89},
	} {
		before := c
		if c.Next(&bad) == nil || c != before {
			t.Errorf("a wrong %s continues the chain", name)
		}
	}
	if err := c.Next(&segment.Header{Position: 6, FirstID: 13, PrevCRC: 88}); err != nil {
		t.Error(err)
	}
}

// The tools are refused while a node runs, even if somebody deleted its LOCK; with live they look nevertheless.
func TestRefusesDirectoriesInUse(t *testing.T) {
	dir := t.TempDir()
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	if err == nil {
		err = disk.WriteFile("node.json", []byte(`{"format": 4}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	for _, remove := range []bool{false, true} {
		if remove {
			if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := openDirectory(dir, false); err == nil || !strings.Contains(err.Error(), "stop it first") {
			t.Errorf("without LOCK: %v: %v, want a refusal", remove, err)
		}
		live, err := openDirectory(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		live.Close()
	}
}
