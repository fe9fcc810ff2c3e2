package segment

import (
	"testing"
	"time"

	"penstock/tests/support/faultaio"
)

// hangPatience is how long an operation that needs no disk may take while the disk hangs; the machine may be busy.
const hangPatience = 30 * time.Second

// If the disk hangs while a goroutine removes or maps a segment, goroutines that need no disk are not held up: they
// append, read segments that are in memory, and release mappings.
func TestHungDiskHoldsNoLock(t *testing.T) {
	for name, kind := range map[string]faultaio.Kind{"removing": faultaio.KindRename, "reading": faultaio.KindRead} {
		t.Run(name, func(t *testing.T) {
			d := faultaio.New(faultaio.Options{Seed: 1, Log: true})
			w := newWorld(t, d)
			w.fill(newRand(41), 200)
			w.settle()
			segs := w.log.Segments()
			if len(segs) < 5 {
				t.Fatalf("%d segments are too few", len(segs))
			}
			look := func(i int) error {
				var v View
				defer v.Release()
				return w.log.View(&v, segs[i].Start, 1)
			}
			if err := look(0); err != nil { // now mapped, and the first one to be unmapped
				t.Fatal(err)
			}
			pattern := "topics/*/*/0000000000.seg"
			if kind == faultaio.KindRename {
				pattern = "" // a rename's name may be the old or the new path
			}
			d.Inject(faultaio.Rule{Kind: kind, Name: pattern, Hold: true, Count: -1})
			hung := make(chan error, 1)
			if kind == faultaio.KindRename {
				go func() {
					_, err := w.log.Trim(segs[1].Start)
					hung <- err
				}()
				waitFor(t, "the rename begins", func() bool {
					for _, op := range d.Log() {
						if op.Kind == faultaio.KindRename {
							return true
						}
					}
					return false
				})
			} else {
				go func() { hung <- look(0) }()
				waitFor(t, "the read begins", func() bool { return w.log.Segments()[0].Pins > 0 })
			}
			free := make(chan error, 1)
			go func() {
				for i := 1; i < 5; i++ {
					if err := look(i); err != nil {
						free <- err
						return
					}
				}
				w.append(1, 100)
				w.log.Unmap()
				free <- nil
			}()
			select {
			case err := <-free:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(hangPatience):
				t.Error("somebody who needs no disk waits for the one that hangs")
			}
			d.ClearRules()
			d.ReleaseHeld()
			if err := <-hung; err != nil {
				t.Error(err)
			}
			w.trimmed()
			w.check()
		})
	}
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(hangPatience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}
