// Command sim simulates clusters of whole nodes on seeds and says which of them break a promise. See package world.
//
//	sim -seed 7 -v            one run, with everything that happened
//	sim -seeds 0-100000       many, on all processors
//	sim -seeds 0-2000 -break early-sync
//	sim -seeds 6000000-6060000 -with producers
//	sim -seeds 7000000-7010000 -with keep,forks
//	sim -seeds 8000000-8002000 -with forget
package main

import (
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
	"sync"
	"sync/atomic"
	"time"

	"penstock/tools/sim/world"
)

func main() {
	seed := flag.Int64("seed", -1, "run this one seed")
	seeds := flag.String("seeds", "", "run the seeds from-to (half-open)")
	nodes := flag.Int("nodes", 0, "nodes of the cluster; 0: the seed decides")
	verbose := flag.Bool("v", false, "show what happens, with the engines' logs")
	tail := flag.Int("tail", 0, "with -seed: show only so many last lines")
	parallel := flag.Int("parallel", runtime.NumCPU(), "runs at the same time")
	hashes := flag.Bool("hashes", false, "with -seeds: show the hash of each run")
	mutant := flag.String("break", "", "let the world lie: "+strings.Join(slices.Sorted(maps.Keys(world.Mutants)), ", "))
	most := flag.Int("most", 10, "end after so many failing seeds")
	small := flag.Bool("small-segments", false, "let batches be larger than the smallest segments")
	features := flag.String("features", "", "what the world does beside the rest, with commas: "+
		strings.Join(slices.Sorted(maps.Keys(world.Features)), ", ")+"; none: the seed decides")
	with := flag.String("with", "", "with -seeds: run only those seeds that draw all of these features")
	cpu := flag.String("cpuprofile", "", "write a profile of the processor time to this file")
	mem := flag.String("memprofile", "", "write a profile of all allocations to this file")
	flag.Parse()
	// Runs leave much behind and keep little: collecting it seldom is cheaper.
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	cfg := world.Config{Nodes: *nodes, SmallSegments: *small}
	if *features != "" {
		f, err := world.ParseFeatures(*features)
		if err != nil {
			fail("%v", err)
		}
		cfg.Features = f
	}
	var drawn world.Feature
	if *with != "" {
		f, err := world.ParseFeatures(*with)
		if err != nil {
			fail("%v", err)
		}
		drawn = f
	}
	if *mutant != "" {
		m, ok := world.Mutants[*mutant]
		if !ok {
			fail("there is no such lie as %q", *mutant)
		}
		cfg.Break = m
	}
	ok := true
	end := profile(*cpu, *mem)
	switch {
	case *seed >= 0:
		ok = one(uint64(*seed), cfg, *verbose, *tail)
	case *seeds != "":
		var from, to uint64
		if _, err := fmt.Sscanf(*seeds, "%d-%d", &from, &to); err != nil || to <= from {
			fail("-seeds %q: want from-to", *seeds)
		}
		ok = many(from, to, drawn, cfg, *parallel, *most, *hashes)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if end(); !ok {
		os.Exit(1)
	}
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

func one(seed uint64, cfg world.Config, verbose bool, tail int) (ok bool) {
	var lines []string
	keep := func(line string) {
		if tail == 0 {
			fmt.Println(line)
			return
		}
		if lines = append(lines, line); len(lines) > 2*tail {
			lines = append(lines[:0], lines[len(lines)-tail:]...)
		}
	}
	if verbose {
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
	for _, line := range lines[max(0, len(lines)-tail):] {
		fmt.Println(line)
	}
	fmt.Printf("seed %d (%v): %+v, hash %016x\n", seed, w.Features(), w.Stats, w.Hash())
	if w.Violation != "" {
		fmt.Printf("seed %d: %s\n", seed, w.Violation)
	}
	return w.Violation == ""
}

type writer func(string)

func (w writer) Write(p []byte) (int, error) {
	w("    " + strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// many runs the seeds from from to to-1 that draw all features in with.
func many(from, to uint64, with world.Feature, cfg world.Config, parallel, most int, hashes bool) (ok bool) {
	var next, failed atomic.Uint64
	next.Store(from)
	var mu sync.Mutex
	var sum world.Stats
	done := uint64(0)
	began := time.Now()
	var all sync.WaitGroup
	for range parallel {
		all.Go(func() {
			for seed := next.Add(1) - 1; seed < to && failed.Load() < uint64(most); seed = next.Add(1) - 1 {
				if with != 0 && world.Draws(seed, cfg)&with != with {
					continue
				}
				w := world.Run(seed, cfg)
				mu.Lock()
				sum.Add(&w.Stats)
				if done++; done%1000 == 0 {
					fmt.Printf("%d seeds, %.1f a second, %d failed\n", done, float64(done)/time.Since(began).Seconds(), failed.Load())
				}
				if hashes {
					fmt.Printf("seed %d: %016x\n", seed, w.Hash())
				}
				if w.Violation != "" {
					failed.Add(1)
					fmt.Printf("seed %d (%v): %s\n", seed, w.Features(), w.Violation)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	fmt.Printf("%d seeds in %v, %.1f a second, %v of simulated time, %d failed\n%+v\n",
		done, took.Round(time.Millisecond), float64(done)/took.Seconds(), sum.Virtual.Round(time.Second), failed.Load(), sum)
	return failed.Load() == 0
}
