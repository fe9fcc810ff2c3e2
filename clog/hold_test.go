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

func (d *diary) Hold()    { d.calls = append(d.calls, "hold") }
func (d *diary) Release() { d.calls = append(d.calls, "release") }

// The log reports each group between Hold and Release, before it gathers the next one, whoever has written it. A group
// that fails is not reported.
func TestHold(t *testing.T) {
	told := []string{"gather", "hold", "durable", "release"}
	for _, itself := range []bool{false, true} {
		for name, c := range map[string]struct {
			fault *faultaio.Rule // of the second group
			want  []string
		}{
			"two groups": {nil, slices.Concat(told, told)},
			"a group fails": {
				&faultaio.Rule{Kind: faultaio.KindWriteSync, Err: syscall.EIO}, slices.Concat(told, []string{"gather", "failed"}),
			},
		} {
			disk := faultaio.New(faultaio.Options{})
			d := &diary{model: newModel()}
			opts := small(0)
			opts.InFlight = 1
			l, _, err := Open(disk, testArena(t, 4*aio.BlockBytes, 3), opts, &replayed{m: d.model})
			if err != nil {
				t.Fatal(err)
			}
			direct(l, itself)
			l.SetSource(d)
			l.SetHolder(d)
			if err := l.Start(); err != nil {
				t.Fatal(err)
			}
			for round := range 2 {
				if round == 1 && c.fault != nil {
					disk.Inject(*c.fault)
				}
				d.put(1)
				for range 4 {
					if _, err := l.Step(false); err != nil && !errors.Is(err, syscall.EIO) {
						t.Fatal(err)
					}
				}
			}
			if !slices.Equal(d.calls, c.want) {
				t.Errorf("%s, direct %v: calls %q, want %q", name, itself, d.calls, c.want)
			}
			closeLog(t, l)
		}
	}
}
