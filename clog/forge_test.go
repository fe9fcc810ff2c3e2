package clog

import (
	"encoding/binary"
	"fmt"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// forge builds files of a log group by group, correct or not.
type forge struct {
	h     groupHeader
	files map[uint64][]byte
	next  uint64 // number of the model's next record
	m     *model
}

func newForge() *forge {
	return &forge{h: groupHeader{BlockShift: 12, Store: testStore, Oldest: 1}, files: map[uint64][]byte{}, m: newModel()}
}

// group appends a group to a file and chains it.
func (f *forge) group(file uint64, add func(g *Group)) {
	data := make([]byte, 16*aio.BlockBytes)
	var g Group
	f.h.Seq++
	g.open(nil, data, len(data), file, f.h.Seq)
	add(&g)
	f.h.PrevCRC = f.h.CRC
	f.h.Durable = f.h.Seq - 1
	f.files[file] = append(f.files[file], g.seal(&f.h)...)
}

// checkpoint begins a file with a checkpoint.
func (f *forge) checkpoint(file uint64) {
	f.group(file, func(g *Group) {
		p := g.add(&Placement{Type: Checkpoint}, flagLast, 16)
		clear(p)
		p[0] = byte(f.next)
	})
}

// records appends a group of n records.
func (f *forge) records(file uint64, n int) {
	f.group(file, func(g *Group) {
		for range n {
			p := f.m.placement(f.next)
			fill(g.add(&p, 0, f.m.size(f.next)), f.next)
			f.next++
		}
	})
}

func (f *forge) mark(file uint64) { f.group(file, func(*Group) {}) }

// twoFiles makes files 1 and 2, with five and three records. The last group says which file is the oldest needed.
func (f *forge) twoFiles(oldest uint64) {
	f.checkpoint(1)
	f.records(1, 3)
	f.records(1, 2)
	f.checkpoint(2)
	f.records(2, 2)
	f.h.Oldest = oldest
	f.records(2, 1)
}

// halfCheckpoint makes file 1 with five records, and file 2 with the first of the two groups of a checkpoint. That
// group says that file 1 is not needed.
func (f *forge) halfCheckpoint() {
	f.checkpoint(1)
	f.records(1, 3)
	f.records(1, 2)
	f.h.Oldest = 2
	f.group(2, func(g *Group) { clear(g.add(&Placement{Type: Checkpoint}, 0, 16)) })
}

// threeFiles is twoFiles for files 2 and 3, behind a file 1.
func (f *forge) threeFiles(oldest uint64) {
	f.checkpoint(2)
	f.records(2, 5)
	f.checkpoint(3)
	f.records(3, 2)
	f.h.Oldest = oldest
	f.records(3, 1)
}

// drop removes the last blocks of a file, as if they had never reached the disk: disk puts zeros there.
func (f *forge) drop(file uint64, blocks int) {
	p := f.files[file]
	clear(p[len(p)-blocks*aio.BlockBytes:])
}

// damage changes one byte.
func (f *forge) damage(file uint64, off int) { f.files[file][off] ^= 0x40 }

// reseal corrects the checksum of the header at off and returns it.
func (f *forge) reseal(file uint64, off int) uint32 {
	p := f.files[file][off:]
	crc := checksum(p[:offGroupCRC])
	binary.LittleEndian.PutUint32(p[offGroupCRC:], crc)
	return crc
}

// lower changes the last group, of one block, so that it promises only the group lag before it.
func (f *forge) lower(file uint64, lag uint32) {
	off := len(f.files[file]) - aio.BlockBytes
	binary.LittleEndian.PutUint32(f.files[file][off+offDurableLag:], lag)
	f.h.CRC = f.reseal(file, off)
}

// disk puts the files on a disk, each followed by some blocks of zeros.
func (f *forge) disk(t testing.TB) *faultaio.Disk {
	t.Helper()
	d := faultaio.New(faultaio.Options{})
	if err := d.MkdirAll(dirName); err != nil {
		t.Fatal(err)
	}
	for number, p := range f.files {
		file, err := d.Create(fileName(number), int64(len(p)+3*aio.BlockBytes))
		if err != nil {
			t.Fatal(err)
		}
		if len(p) > 0 {
			aligned, free := aio.AlignedBytes(len(p))
			copy(aligned, p)
			if err := file.WriteSyncAt(aligned, 0); err != nil {
				t.Fatal(err)
			}
			free()
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.SyncDir(dirName); err != nil {
		t.Fatal(err)
	}
	return d
}

// content is everything in the folder, to check that nothing was changed.
func content(t testing.TB, d aio.Disk) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for name, p := range filesOf(t, d) {
		all[name] = fmt.Sprintf("%x", checksum(p))
	}
	return all
}

// filesOf reads the log's files.
func filesOf(t testing.TB, d aio.Disk) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	infos, err := d.ReadDir(dirName)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		f, err := d.Open(dirName + "/" + info.Name())
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, info.Size())
		if err := f.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		all[info.Name()] = p
	}
	return all
}
