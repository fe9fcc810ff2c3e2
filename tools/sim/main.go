// Command sim simulates clusters of whole nodes on seeds and says which of them break a promise. See package world, and
// docs/contribute/simulator.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"penstock/tools/sim/campaign"
	"penstock/tools/sim/world"
)

const usage = `sim simulates clusters of whole nodes on seeds, and says which seeds break a promise.

  sim -for 10m              a campaign: new seeds for 10 minutes
  sim -count 5000           a campaign of so many seeds
  sim -replay 20 -for 10m   first 20 of the seeds that found a mistake once
  sim -regressions          all seeds that found a mistake once
  sim -seed 7               one seed; if it fails, with its transcript
  sim -seed 7 -v            one seed, with everything that happens and the engines' logs
  sim -seeds 0-2000 -break early-sync
  sim -for 10m -with keep,forks
  sim -for 10m -reach 500   a campaign that must bring about everything that the simulation is for

A campaign takes seeds that no campaign on this machine has taken: -memory names the file that says which. It runs every
second seed as it comes, and chooses the others for the faults that found something lately, by campaign/found.txt. With
-with it runs only seeds that draw these features. Its end depends on the clock, and each seed's run only on the seed.

Flags:
`

// options are the flags.
type options struct {
	seed                         int64
	seeds, with, memory          string
	version                      string
	lasts                        time.Duration
	count, replay, tail, reach   int
	parallel, most               int
	regressions, verbose, hashes bool

	cfg  world.Config
	draw world.Feature // with, parsed
}

func main() {
	var o options
	var cpu, mem, features, lie string
	flag.Int64Var(&o.seed, "seed", -1, "run this one seed")
	flag.StringVar(&o.seeds, "seeds", "", "run the seeds from-to (half-open), whether or not campaigns have run them")
	flag.DurationVar(&o.lasts, "for", 0, "run new seeds for so long, by the clock; runs that go on then are given up")
	flag.IntVar(&o.count, "count", 0, "run so many new seeds")
	flag.IntVar(&o.reach, "reach", 0, "run at least so many new seeds, however long that takes, and fail if they do not "+
		"bring about what they are for")
	flag.StringVar(&o.memory, "memory", campaign.DefaultPath(),
		"the file of the seeds that campaigns have taken; empty: none, and a random place to begin at")
	flag.StringVar(&o.version, "version", "unknown", "the code's version, for the memory")
	flag.BoolVar(&o.regressions, "regressions", false, "run all seeds of world/testdata/seeds.txt")
	flag.IntVar(&o.replay, "replay", 0, "first run so many seeds of world/testdata/seeds.txt, drawn at random")
	flag.IntVar(&o.cfg.Nodes, "nodes", 0, "nodes of the cluster; 0: the seed decides")
	flag.BoolVar(&o.verbose, "v", false, "with -seed: show what happens, with the engines' logs")
	flag.IntVar(&o.tail, "tail", 0, "with -v: show only so many last lines")
	flag.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "runs at the same time")
	flag.BoolVar(&o.hashes, "hashes", false, "show the hash of each run")
	flag.StringVar(&lie, "break", "", "let the world lie: "+strings.Join(slices.Sorted(maps.Keys(world.Mutants)), ", "))
	flag.IntVar(&o.most, "most", 10, "end after so many failing seeds")
	flag.BoolVar(&o.cfg.SmallSegments, "small-segments", false, "let batches be larger than the smallest segments")
	flag.StringVar(&features, "features", "", "what the world does beside the rest, with commas: "+
		strings.Join(slices.Sorted(maps.Keys(world.Features)), ", ")+"; none: the seed decides")
	flag.StringVar(&o.with, "with", "", "run only those seeds that draw all of these features")
	flag.StringVar(&cpu, "cpuprofile", "", "write a profile of the processor time to this file")
	flag.StringVar(&mem, "memprofile", "", "write a profile of all allocations to this file")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	// Runs leave much behind and keep little: collecting it seldom is cheaper.
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	o.parse(features, lie)
	end := profile(cpu, mem)
	ok := o.run()
	if end(); !ok {
		os.Exit(1)
	}
}

// parse reads the flags that name features and lies.
func (o *options) parse(features, lie string) {
	var err error
	if features != "" {
		if o.cfg.Features, err = world.ParseFeatures(features); err != nil {
			fail("%v", err)
		}
	}
	if o.with != "" {
		if o.draw, err = world.ParseFeatures(o.with); err != nil {
			fail("%v", err)
		}
	}
	if lie != "" {
		m, ok := world.Mutants[lie]
		if !ok {
			fail("there is no such lie as %q", lie)
		}
		o.cfg.Break = m
	}
}

func (o *options) run() (ok bool) {
	if o.seed >= 0 {
		return o.one(uint64(o.seed))
	}
	ctx := context.Background()
	if o.lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.lasts)
		defer cancel()
	}
	ok = true
	began := false
	for _, part := range []struct {
		wanted, late bool // late: also when the time is over
		jobs         func() jobs
	}{
		{o.regressions || o.replay > 0, false, o.known},
		{o.seeds != "", false, o.fixed},
		{o.seeds == "" && (o.lasts > 0 || o.count > 0), o.reach > 0, o.campaign},
	} {
		if part.wanted && (part.late || ctx.Err() == nil) {
			began = true
			ok = o.many(ctx, part.jobs()) && ok
		}
	}
	if !began {
		flag.Usage()
		os.Exit(2)
	}
	return ok
}

// gcPercent and memoryLimit are for campaigns.
const (
	gcPercent   = 200
	memoryLimit = 2 << 30
)

// profile begins to write profiles, to files that have names, and returns what ends that.
func profile(cpu, mem string) (end func()) {
	var file *os.File
	if cpu != "" {
		var err error
		if file, err = os.Create(cpu); err == nil {
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			fail("%v", err)
		}
	}
	return func() {
		if file != nil {
			pprof.StopCPUProfile()
			_ = file.Close()
		}
		if mem == "" {
			return
		}
		f, err := os.Create(mem)
		if err == nil {
			err = errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
		}
		if err != nil {
			fail("%v", err)
		}
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "sim: "+format+"\n", args...)
	os.Exit(2)
}

func (o *options) one(seed uint64) (ok bool) {
	var lines []string
	keep := func(line string) {
		if o.tail == 0 {
			fmt.Println(line)
			return
		}
		if lines = append(lines, line); len(lines) > 2*o.tail {
			lines = append(lines[:0], lines[len(lines)-o.tail:]...)
		}
	}
	cfg := o.cfg
	if o.verbose {
		cfg.Trace = keep
		cfg.Engine = slog.NewTextHandler(writer(keep), &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})
	}
	w := world.Run(seed, cfg)
	for _, line := range lines[max(0, len(lines)-o.tail):] {
		fmt.Println(line)
	}
	fmt.Printf("seed %d (%v): %+v, hash %016x\n", seed, w.Features(), w.Stats, w.Hash())
	if w.Violation == "" {
		return true
	}
	fmt.Printf("seed %d: %s\n", seed, w.Violation)
	if !o.verbose {
		fmt.Print("\n", world.Transcript(seed, o.cfg))
	}
	return false
}

type writer func(string)

func (w writer) Write(p []byte) (int, error) {
	w("    " + strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
