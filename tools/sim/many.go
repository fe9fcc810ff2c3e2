package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock/tools/sim/campaign"
	"penstock/tools/sim/world"
)

// job is one run.
type job struct {
	seed   uint64
	cfg    world.Config
	chosen world.Feature // why a campaign runs it; 0: it came next
}

// jobs are the runs of one part. Callers of next take turns.
type jobs struct {
	what  string                // at the beginning
	least int                   // so many are run, although the time is over, and must bring about everything; 0: none
	next  func() (job, error)   // io.EOF: there are no more
	tell  func() (taken string) // at the end
}

// known are seeds of testdata/seeds.txt: all, or a few at random.
func (o *options) known() jobs {
	list, err := world.Regressions()
	if err != nil {
		fail("%v", err)
	}
	list = slices.DeleteFunc(slices.Clone(list), func(g world.Regression) bool {
		return o.draw != 0 && world.Draws(g.Seed, g.Config)&o.draw != o.draw
	})
	if !o.regressions {
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		list = list[:min(o.replay, len(list))]
	}
	what := fmt.Sprintf("%d seeds that found something once", len(list))
	return jobs{what, 0, func() (job, error) {
		if len(list) == 0 {
			return job{}, io.EOF
		}
		g := list[0]
		list = list[1:]
		g.Config.Break, g.Config.Nodes = o.cfg.Break, o.cfg.Nodes
		return job{seed: g.Seed, cfg: g.Config}, nil
	}, func() string { return "" }}
}

// fixed are the seeds of -seeds that draw all features of -with.
func (o *options) fixed() jobs {
	var from, to uint64
	if _, err := fmt.Sscanf(o.seeds, "%d-%d", &from, &to); err != nil || to <= from {
		fail("-seeds %q: want from-to", o.seeds)
	}
	return jobs{"seeds " + o.seeds, 0, func() (job, error) {
		for from < to {
			seed := from
			if from++; o.draw == 0 || world.Draws(seed, o.cfg)&o.draw == o.draw {
				return job{seed: seed, cfg: o.cfg}, nil
			}
		}
		return job{}, io.EOF
	}, func() string { return "" }}
}

// spanCount is how many seeds a campaign takes at once. Several processes may share a memory.
const spanCount = 1000

// newSeeds are the jobs of a campaign. Callers of its methods take turns.
type newSeeds struct {
	o           *options
	memory      *campaign.Memory
	picker      campaign.Picker
	now         campaign.Span // what is left of the span that was taken
	first, last uint64        // the first seed, and one beyond the last that was run
	count       int
	why         map[string]int // how many seeds were run for which reason
}

// campaign are new seeds, up to -count of them.
func (o *options) campaign() jobs {
	table, err := campaign.FoundLately()
	if err != nil {
		fail("found.txt: %v", err)
	}
	n := &newSeeds{o: o, memory: campaign.NewMemory(o.memory), why: map[string]int{}}
	if n.now, err = n.memory.Take(spanCount, o.version); err != nil && o.memory == campaign.DefaultPath() {
		fmt.Printf("no campaign remembers these seeds: %v\n", err)
		o.memory, n.memory = "", campaign.NewMemory("")
		n.now, err = n.memory.Take(spanCount, o.version)
	}
	if err != nil {
		fail("the memory of the seeds that were run: %v; -memory names another file", err)
	}
	n.first, n.last = n.now.From, n.now.From
	draws := func(seed uint64) world.Feature { return world.Draws(seed, o.cfg) }
	n.picker = campaign.Picker{Take: n.take, Table: table, With: o.draw, Draws: draws}
	where := cmp.Or(o.memory, "no file")
	return jobs{fmt.Sprintf("new seeds from %d on; %s remembers them", n.first, where), o.reach, n.next, n.tell}
}

func (n *newSeeds) take() (seed uint64, err error) {
	if n.now.From == n.now.To {
		if n.now, err = n.memory.Take(spanCount, n.o.version); err != nil {
			return 0, err
		}
	}
	n.now.From++
	return n.now.From - 1, nil
}

func (n *newSeeds) next() (job, error) {
	if n.o.count > 0 && n.count == n.o.count {
		return job{}, io.EOF
	}
	seed, chosen, err := n.picker.Next()
	if err != nil {
		return job{}, err
	}
	n.last = seed + 1
	n.count++
	if chosen == 0 {
		n.why["as they came"]++
	} else {
		n.why["for "+chosen.String()]++
	}
	return job{seed, n.o.cfg, chosen}, nil
}

func (n *newSeeds) tell() string {
	text := fmt.Sprintf("seeds %d-%d:", n.first, n.last)
	for _, reason := range slices.Sorted(maps.Keys(n.why)) {
		text += fmt.Sprintf(" %d %s,", n.why[reason], reason)
	}
	return text + " the rest left out"
}

// maxTranscripts is how many failing seeds are shown at length.
const maxTranscripts = 3

// tally counts the runs of one part.
type tally struct {
	o      *options
	jobs   jobs
	began  time.Time
	mu     sync.Mutex // guards what follows, jobs and the output
	done   int
	failed int
	sum    world.Stats
	err    error
	over   bool          // nothing more is counted or printed
	enough chan struct{} // closed when as many have ended as the jobs demand
}

// many runs jobs on -parallel processors until there are no more, too many have failed, or the time is over. Runs that
// go on then count as not begun: a process at idle priority may be kept from the end of one for long.
func (o *options) many(ctx context.Context, list jobs) (ok bool) {
	t := &tally{o: o, jobs: list, began: time.Now(), enough: make(chan struct{})}
	if list.least == 0 {
		close(t.enough)
	}
	fmt.Println(list.what)
	var all sync.WaitGroup
	for range o.parallel {
		all.Go(func() {
			for t.step() {
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-t.enough:
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.err != nil {
		fail("%v", t.err)
	}
	took := time.Since(t.began)
	fmt.Printf("%d seeds in %v, %.1f a second, %v of simulated time, %d failed\n%+v\n",
		t.done, took.Round(time.Millisecond), float64(t.done)/took.Seconds(), t.sum.Virtual.Round(time.Second),
		t.failed, t.sum)
	if text := list.tell(); text != "" {
		fmt.Println(text)
	}
	missing := t.sum.Missing()
	if list.least > 0 && len(missing) > 0 {
		fmt.Printf("none of these seeds brought about these: they do not reach what they are for: %q\n", missing)
		return false
	}
	return t.failed == 0
}

// step makes one run; false: it was the last.
func (t *tally) step() (more bool) {
	t.mu.Lock()
	if t.over || t.failed >= t.o.most || t.err != nil {
		t.mu.Unlock()
		return false
	}
	j, err := t.jobs.next()
	if err != nil && !errors.Is(err, io.EOF) {
		t.err = err
	}
	t.mu.Unlock()
	if err != nil {
		return false
	}
	w := world.Run(j.seed, j.cfg)
	text := ""
	if w.Violation != "" {
		text = fmt.Sprintf("seed %d (%v): %s\n\n%s\n", j.seed, w.Features(), w.Violation, world.Transcript(j.seed, j.cfg))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.count(w, text)
	return true
}

// count adds a run that has ended.
func (t *tally) count(w *world.World, text string) {
	t.sum.Add(&w.Stats)
	if t.done++; t.done == t.jobs.least {
		close(t.enough)
	}
	if t.done%1000 == 0 {
		fmt.Printf("%d seeds, %.1f a second, %d failed\n", t.done, float64(t.done)/time.Since(t.began).Seconds(), t.failed)
	}
	if t.o.hashes {
		fmt.Printf("seed %d: %016x\n", w.Seed, w.Hash())
	}
	if w.Violation == "" {
		return
	}
	if t.failed++; t.failed > maxTranscripts {
		text = fmt.Sprintf("seed %d (%v): %s\n", w.Seed, w.Features(), w.Violation)
	}
	fmt.Print(text)
}
