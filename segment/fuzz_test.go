package segment

import (
	"bytes"
	"encoding/binary"
	"testing"

	"penstock/batch"
	"penstock/tests/support/faultaio"
)

func FuzzSegmentHeader(f *testing.F) {
	h := goldenSegHeader()
	block := make([]byte, SegmentHeaderBytes)
	h.encode(block)
	f.Add(block)
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= segFieldsBytes { // get past the checksum, to the rules behind it
			p = append(p[:segFieldsBytes:segFieldsBytes], make([]byte, SegmentHeaderBytes-segFieldsBytes)...)
			binary.LittleEndian.PutUint32(p[offSegCRC:], batch.Checksum(p[:offSegCRC]))
		}
		var h segHeader
		if h.decode(p) != nil {
			return
		}
		back := make([]byte, SegmentHeaderBytes)
		if h.encode(back); !bytes.Equal(back, p) {
			t.Fatalf("a decoded header does not encode to itself: %+v", h)
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add(encodeIndex(&indexHeader{id: testIdentity, end: 100}, []indexEntry{{}, {50, 1, 1, 1}}))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= idxHeaderBytes {
			binary.LittleEndian.PutUint32(p[offIdxEntriesCRC:], batch.Checksum(p[idxHeaderBytes:]))
			binary.LittleEndian.PutUint32(p[offIdxCRC:], batch.Checksum(p[:offIdxCRC]))
		}
		h, entries, err := decodeIndex(p)
		if err != nil {
			return
		}
		if !bytes.Equal(encodeIndex(&h, entries), p) {
			t.Fatalf("a decoded index does not encode to itself: %+v", h)
		}
	})
}

// FuzzStoredBytes overwrites part of a stored segment (and its index) with arbitrary bytes. Reads return what was
// written, or an error; they never panic and never return other bytes.
func FuzzStoredBytes(f *testing.F) {
	base := newWorld(f, memoryDisk())
	base.fill(newRand(50), 40)
	base.settle()
	disk := base.disk.(*faultaio.Disk)
	f.Add(uint16(4096), false, []byte{0, 0, 0, 0})
	f.Add(uint16(5000), false, base.model[3].data)
	f.Add(uint16(64), true, []byte{1})
	f.Fuzz(func(t *testing.T, at uint16, index bool, p []byte) {
		w := *base
		w.t = t
		d := disk.Kill(1)
		w.disk = d
		name := w.dir + "/0000000001.seg"
		if index {
			name = indexPath(name)
		}
		data, err := d.ReadFile(name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		off := int(at) % len(data)
		d.Corrupt(name, p[:min(len(p), len(data)-off)], int64(off))
		w.open(w.st)
		defer w.log.Close()
		got, damaged := w.readAround()
		if index && len(damaged) != 0 {
			t.Fatalf("a damaged index hides batches %v", damaged)
		}
		if n := len(got) + len(damaged); n != len(w.model) {
			t.Fatalf("%d of %d batches", n, len(w.model))
		}
		w.seekAround(1)
	})
}
