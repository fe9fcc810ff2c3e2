package clog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// resum corrects the checksums of a group's headers where there is room for them, so that a fuzzer gets past them. The
// checksums of payloads stay as they are.
func resum(p []byte) {
	if len(p) < GroupHeaderBytes {
		return
	}
	le := binary.LittleEndian
	le.PutUint32(p, groupMagic)
	p[offVersion] = Version
	le.PutUint16(p[offHeaderBytes:], GroupHeaderBytes)
	le.PutUint32(p[offGroupCRC:], checksum(p[:offGroupCRC]))
	seed := recordSeed(p)
	for at := GroupHeaderBytes; len(p)-at >= RecordHeaderBytes; {
		r := p[at:]
		le.PutUint32(r[recCRC:], crc32.Update(seed, castagnoli, r[:recCRC]))
		n := le.Uint32(r[recBytes:])
		if int64(n) > int64(len(r)-RecordHeaderBytes) {
			return
		}
		at += RecordHeaderBytes + int(n)
	}
}

// FuzzGroup: any bytes are either a group that verifies or an error. There is never a panic or a read outside.
func FuzzGroup(f *testing.F) {
	golden := goldenFile()
	for off := 0; off < len(golden); off += aio.BlockBytes {
		f.Add(golden[off:off+aio.BlockBytes], false)
		f.Add(golden[off:off+512], true)
	}
	f.Fuzz(func(t *testing.T, p []byte, fix bool) {
		if fix {
			p = append([]byte(nil), p...)
			resum(p)
		}
		var h groupHeader
		if h.decode(p) != headerValid || h.padded() > int64(len(p)) {
			return
		}
		if h.Durable >= h.Seq || h.Oldest > h.File || h.padded()%(1<<h.BlockShift) != 0 {
			t.Fatalf("%+v", h)
		}
		var c chunks
		_, err := verifyGroup(&h, p)
		if err != nil {
			return
		}
		c.fits(&h, p)
		n, bytes := 0, GroupHeaderBytes
		err = eachRecord(&h, p, func(r *recordHeader, payload []byte) error {
			n++
			bytes += RecordHeaderBytes + len(payload)
			return checkRecord(r.Type, payload)
		})
		if err != nil || n != int(h.Records) || bytes != int(h.Bytes) {
			t.Fatalf("%v: %d records of %d bytes: %+v", err, n, bytes, h)
		}
		// A group that verifies encodes to the same bytes.
		again := append([]byte(nil), p[:h.padded()]...)
		same := h
		same.encode(again)
		if string(again) != string(p[:h.padded()]) || same != h {
			t.Fatalf("%+v encodes differently", h)
		}
	})
}

func checkRecord(typ Type, payload []byte) error {
	if typ != Batch {
		return nil
	}
	var b segment.Header
	if err := b.Decode(payload); err != nil {
		return err
	}
	return batch.VerifyBody(&b, payload[segment.HeaderBytes:])
}

// anything is a Replayer that only counts.
type anything struct{ chunks, records int }

func (a *anything) Restart() { *a = anything{} }

func (a *anything) Checkpoint(chunk []byte) error {
	a.chunks++
	if a.records > 0 || len(chunk) == 0 {
		panic("a chunk that is empty or behind records")
	}
	return nil
}

func (a *anything) Record(r *Record) error {
	a.records++
	if err := checkRecord(r.Type, r.Payload); err != nil || r.Type == Checkpoint || r.Buf == nil {
		panic(fmt.Sprint("a record that does not verify: ", err))
	}
	return nil
}

// FuzzRecovery: two files of any bytes give records that verify, or an error of a known kind, and a second recovery
// finds the same. Neither panics or loops.
func FuzzRecovery(f *testing.F) {
	golden := goldenFile()
	f.Add(golden, []byte(nil), false)
	fg := newForge()
	fg.checkpoint(9)
	fg.records(9, 3)
	fg.checkpoint(10)
	fg.records(10, 1)
	fg.mark(10)
	f.Add(fg.files[9], fg.files[10], false)
	f.Add(fg.files[9], fg.files[9], true)
	f.Add(fg.files[10], fg.files[9], true)
	arena, err := aio.NewArena(4*aio.BlockBytes, 2)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, one, two []byte, fix bool) {
		if len(one)+len(two) > 64*aio.BlockBytes {
			return
		}
		fg := newForge()
		for number, p := range map[uint64][]byte{9: one, 10: two} {
			p = append([]byte(nil), p...)
			p = append(p, make([]byte, -len(p)&(aio.BlockBytes-1))...)
			for off := 0; fix && off < len(p); off += aio.BlockBytes {
				resum(p[off:])
			}
			fg.files[number] = p
		}
		d := fg.disk(t)
		var first, again anything
		l, report, err := Open(d, arena, small(0), &first)
		if err != nil {
			var c *segment.CorruptError
			if !errors.As(err, &c) && !errors.Is(err, ErrForeign) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			if l != nil {
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			return
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l, report2, err := Open(d, arena, small(0), &again)
		if err != nil || again != first || report2.LastSeq != report.LastSeq {
			t.Fatalf("%v: %+v, then %+v", err, first, again)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzLife drives the log by bytes on a disk that crashes: acknowledged records are recovered, in whatever order events
// happen.
func FuzzLife(f *testing.F) {
	f.Add([]byte{9, 1, 1, 2, 1, 1, 3, 1, 4, 1, 1}, uint16(40))
	f.Add([]byte{255, 1, 4, 254, 1, 1, 1, 3, 3, 1}, uint16(9))
	arena, err := aio.NewArena(4*aio.BlockBytes, 3)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, script []byte, at uint16) {
		d := faultaio.New(faultaio.Options{Seed: uint64(at)})
		d.CrashAt(int(at))
		m := crashModel()
		fl := newLife(d, arena, m, uint64(at))
		fl.script = script
		if err := fl.run(min(len(script), 200), at%2 == 0); err != nil && !errors.Is(err, faultaio.ErrCrashed) {
			t.Fatal(err)
		}
		for crash := range uint64(3) {
			r, report, err := recovered(d.Crash(crash), arena, m)
			if err == nil {
				err = r.check()
			}
			if err != nil {
				t.Fatalf("crash %d: %v (%+v)", crash, err, report)
			}
		}
	})
}
