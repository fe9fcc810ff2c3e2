package clog

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// diary is a Source and its Holder, and notes the calls.
type diary struct {
	*model
	log   *Log
	disk  *faultaio.Disk
	calls []string
}

func (d *diary) Gather(g *Group) {
	if d.model.Gather(g); g.Records() > 0 {
		d.calls = append(d.calls, "gather")
	}
}

func (d *diary) Durable(g *Group) {
	d.calls = append(d.calls, "durable")
	d.model.Durable(g)
}

func (d *diary) Failed(err error) {
	d.calls = append(d.calls, "failed")
	d.model.Failed(err)
}

func (d *diary) Hold() { d.calls = append(d.calls, "hold") }

// Release notes whether the next group is part of the log already.
func (d *diary) Release() {
	call := "release"
	if len(d.log.inFlight) > 0 {
		call += ", a group in flight"
	}
	d.calls = append(d.calls, call)
}

// The log calls Release once the next group is on its way to the disk, but before it waits for a write on its own
// goroutine, and also when it fails. A group that is written at once is reported without Hold.
func TestHold(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		next func(d *diary) // after the first group was submitted
		want []string
	}{
		"nothing follows": {func(*diary) {}, []string{"gather", "hold", "durable", "release"}},
		"a group follows": {
			func(d *diary) { d.put(1) },
			[]string{"gather", "hold", "durable", "gather", "release, a group in flight", "hold", "durable", "release"},
		},
		"a group that is written at once follows": {
			func(d *diary) { d.put(1); d.log.opts.DirectBytes = aio.BlockBytes },
			[]string{"gather", "hold", "durable", "gather", "release, a group in flight", "durable"},
		},
		"the next write cannot start": {
			func(d *diary) {
				d.put(1)
				d.log.opts.DirectBytes = aio.BlockBytes
				d.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Err: errors.Join(boom, syscall.EIO)})
			},
			[]string{"gather", "hold", "durable", "gather", "release, a group in flight", "failed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := faultaio.New(faultaio.Options{})
			d := &diary{model: newModel(), disk: disk}
			opts := small(0)
			opts.InFlight = 1
			l, _, err := Open(disk, testArena(t, 4*aio.BlockBytes, 3), opts, &replayed{m: d.model})
			if err != nil {
				t.Fatal(err)
			}
			defer closeLog(t, l)
			d.log = l
			l.SetSource(d)
			l.SetHolder(d)
			if err := l.Start(); err != nil {
				t.Fatal(err)
			}
			d.put(1)
			disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Waits: 1})
			if _, err := l.Step(false); err != nil {
				t.Fatal(err)
			}
			c.next(d)
			for range 4 {
				if _, err := l.Step(false); err != nil && !errors.Is(err, boom) {
					t.Fatal(err)
				}
			}
			if !slices.Equal(d.calls, c.want) {
				t.Errorf("calls %q, want %q", d.calls, c.want)
			}
		})
	}
}
