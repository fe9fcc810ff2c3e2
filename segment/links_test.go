package segment

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/seedtest"
)

// linkedWorld is a log on a real file system, of which a backup holds every file under a second name.
type linkedWorld struct {
	*world
	dir    string // of the data directory
	backup map[string][]byte
}

func newLinkedWorld(t *testing.T) *linkedWorld {
	dir := t.TempDir()
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close() })
	w := &linkedWorld{newWorld(t, disk), dir, map[string][]byte{}}
	w.fill(newRand(77), 60)
	w.settle()
	return w
}

func (w *linkedWorld) file(segment uint32) string {
	return filepath.Join(w.dir, w.world.dir, segmentName(segment))
}

// link gives every segment file a second name, and notes what it has.
func (w *linkedWorld) link() {
	w.t.Helper()
	to := w.t.TempDir()
	for _, s := range w.log.Segments() {
		second := filepath.Join(to, fmt.Sprint(s.Number))
		if err := os.Link(w.file(s.Number), second); err != nil {
			w.t.Fatal(err)
		}
		data, err := os.ReadFile(second)
		if err != nil {
			w.t.Fatal(err)
		}
		w.backup[second] = data
	}
}

// checkBackup checks that the second names show what they showed.
func (w *linkedWorld) checkBackup() {
	w.t.Helper()
	for name, was := range w.backup {
		if is, err := os.ReadFile(name); err != nil || !bytes.Equal(is, was) {
			w.t.Errorf("the backup's file %s is not what it was (%v)", filepath.Base(name), err)
		}
	}
}

func (w *linkedWorld) flip(i int) {
	w.t.Helper()
	s := &w.model[i].slice
	f, err := os.OpenFile(w.file(s.Segment), os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	at := SegmentHeaderBytes + int64(s.Offset-s.SegmentBase) + HeaderBytes + 3
	b := []byte{0}
	if _, err := f.ReadAt(b, at); err != nil {
		w.t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b, at); err != nil {
		w.t.Fatal(err)
	}
}

// A repair does not write to a file that somebody else holds under another name, as a backup does: it goes to a copy,
// which takes the file's place. That holds for full segments and for the newest one.
func TestRepairLeavesLinkedFilesAlone(t *testing.T) {
	for _, which := range []string{"full", "newest"} {
		t.Run(which, func(t *testing.T) {
			w := newLinkedWorld(t)
			i := 3
			if which == "newest" {
				i = len(w.model) - 1
			}
			w.flip(i)
			w.link()
			if _, damaged := w.readAround(); len(damaged) != 1 || damaged[0] != i {
				t.Fatalf("damaged %v", damaged)
			}
			r := w.log.Isolated()
			if err := w.log.Repair(w.w, r[0], w.model[i].data); err != nil {
				t.Fatal(err)
			}
			w.checkBackup()
			w.check()
			w.append(2, 100)
			w.settle()
			w.check()
			w.checkBackup()
			w.reopen()
			w.check()
		})
	}
}

// A log that is cut inside a segment that was full writes on in a copy if the file has another name, also when the
// process ended between the cut and the next write.
func TestCutLeavesLinkedFilesAlone(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("reopened ", again), func(t *testing.T) {
			w := newLinkedWorld(t)
			w.link()
			w.truncate(len(w.model) / 2)
			if again {
				w.reopen()
			}
			for range 10 {
				w.append(2, 100)
			}
			w.settle()
			w.check()
			w.checkBackup()
		})
	}
}

// A backup's second name below held/ is no reason to copy the segment that is being written.
func TestHeldFileIsWrittenOn(t *testing.T) {
	w := newLinkedWorld(t)
	newest := w.file(w.log.Segments()[len(w.log.Segments())-1].Number)
	before, err := os.Stat(newest)
	if err != nil {
		t.Fatal(err)
	}
	var held []*HeldFile
	if err := w.log.HoldFiles(func(h *HeldFile) error {
		held = append(held, h)
		return os.Link(filepath.Join(w.dir, h.Path), filepath.Join(w.dir, fmt.Sprint("held", len(held))))
	}); err != nil {
		t.Fatal(err)
	}
	w.append(1, 50)
	w.settle()
	w.check()
	if after, err := os.Stat(newest); err != nil || !os.SameFile(before, after) {
		t.Errorf("the newest segment was copied (%v)", err)
	}
	for _, h := range held {
		h.Release()
	}
}

// rot turns a bit of a batch that is on the disk. Backups whose files are the same show that, too.
func (w *linkedWorld) rot(i int) {
	w.settle()
	w.flip(i)
	for name := range w.backup {
		data, err := os.ReadFile(name)
		if err != nil {
			w.t.Fatal(err)
		}
		w.backup[name] = data
	}
}

// Random operations on a log, files of which backups hold under second names: nothing that the log does afterwards
// changes what they show.
func TestLinkedRandom(t *testing.T) {
	for seed := range seedtest.Each(t, 15, 5) {
		w, rng := newLinkedWorld(t), newRand(seed)
		for range 25 {
			switch rng.IntN(6) {
			case 0:
				w.link()
			case 1:
				w.truncate(len(w.model)/2 + rng.IntN(len(w.model)/2+1))
			case 2:
				w.reopen()
			case 3:
				w.rot(len(w.model) - 1 - rng.IntN(min(len(w.model), 20)))
				if rng.IntN(2) == 0 {
					w.link()
				}
				w.readAround()
				for _, r := range w.log.Isolated() {
					for i := range w.model {
						if w.model[i].slice.Offset == r.From {
							if err := w.log.Repair(w.w, r, w.model[i].data); err != nil {
								t.Fatalf("seed %d: %v", seed, err)
							}
						}
					}
				}
			default:
				w.fill(rng, 1+rng.IntN(12))
				w.settle()
			}
			if w.checkBackup(); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		w.check()
	}
}
