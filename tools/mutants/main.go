// Command mutants plants known bugs, one line each, and demands that the tests notice every one.
//
// The bugs are listed in a table (mutants.txt beside this file). Each is planted in a copy of its file, which the go
// command builds instead of the tree's (-overlay): nothing in the tree changes. For each, the test binaries that the
// table names are built once and run until one fails, which kills the mutant. A mutant that survives, that does not
// compile, or whose line is not found exactly once fails the command.
//
// With -test, one test stands in for those that the table names: what does a simulation see by itself, for instance?
// TEST_SIM_SEEDS=0-600 mutants -run redrive -test './internal/node/delivery TestChannelRandom'
//
// usage: mutants [-run REGEXP] [-rows N-M] [-sample N -seed S] [-jobs N] [-baseline] [-timeout D] [-test TEST]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	table := flag.String("table", "tools/mutants/mutants.txt",
		"the mutants; paths in it are those of the working directory, the module's root")
	only := flag.String("run", "", "regular expression of the mutants' names")
	sample := flag.Int("sample", 0, "try so many of them; 0: all")
	seed := flag.Uint64("seed", 0, "chooses the sample")
	jobs := flag.Int("jobs", 2, "mutants at once")
	baseline := flag.Bool("baseline", false, "first run the tests without a mutant: they must pass")
	timeout := flag.Duration("timeout", 2*time.Minute,
		"of one test binary whose mutant names no limit; one that does not end has noticed nothing")
	instead := flag.String("test", "", "the test to run instead of the table's: a package and a regular expression")
	rows := flag.String("rows", "", "try only those with these numbers in the table: 1-60, the last included")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	all, err := readTable(*table)
	if err != nil {
		return err
	}
	filter, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	for _, m := range all { // of all, also those that are not tried: the table is right or wrong as a whole
		if _, e := m.planted(); e != nil {
			err = errors.Join(err, fmt.Errorf("mutant %s: %w", m.name, e))
		}
	}
	if err != nil {
		return err
	}
	total := len(all)
	if all, err = span(all, *rows); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool { return !filter.MatchString(m.name) })
	if err := replaceTests(all, *instead); err != nil {
		return err
	}
	if *sample > 0 && *sample < len(all) {
		all = draw(all, *sample, *seed)
	}
	dir, err := os.MkdirTemp("", "penstock-mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := &workshop{ctx: ctx, dir: dir, timeout: *timeout}
	if w.root, err = os.Getwd(); err != nil {
		return err
	}
	if *baseline {
		if err := w.baseline(all); err != nil {
			return err
		}
	}
	began := time.Now()
	killed, bad := w.tryAll(all, *jobs)
	fmt.Printf("%d of %d mutants tried in %v: %d killed, %d not\n",
		killed+bad, total, time.Since(began).Round(time.Second), killed, bad)
	if bad > 0 {
		return fmt.Errorf("%d mutants were not killed: write the test that is missing, or correct the table", bad)
	}
	return ctx.Err()
}

// draw chooses some of the mutants, but none whose tests need what not every machine has.
func draw(all []*mutant, count int, seed uint64) []*mutant {
	all = slices.DeleteFunc(all, func(m *mutant) bool {
		return slices.ContainsFunc(m.tests, func(t test) bool { return t.tags != "" })
	})
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(count, len(all))]
}

// span returns the mutants with the numbers of a text like 1-60, so that a table can be tried in pieces; empty: all.
func span(all []*mutant, rows string) ([]*mutant, error) {
	if rows == "" {
		return all, nil
	}
	var from, to int
	if n, err := fmt.Sscanf(rows, "%d-%d", &from, &to); n != 2 || err != nil || from < 1 || from > min(to, len(all)) {
		return nil, fmt.Errorf("-rows %s: want two numbers from 1 to %d, as in 1-60", rows, len(all))
	}
	return all[from-1 : min(to, len(all))], nil
}

// replaceTests lets all mutants be tried by one test; empty: by those of the table.
func replaceTests(all []*mutant, by string) error {
	for _, m := range all {
		if by == "" {
			break
		}
		if m.tests, m.says = nil, ""; !m.set("test", by) {
			return fmt.Errorf("-test %q: want a package, a regular expression, and perhaps build tags", by)
		}
	}
	return nil
}

// planted is the mutant's file with the bug in it.
func (m *mutant) planted() ([]byte, error) {
	source, err := os.ReadFile(filepath.FromSlash(m.file))
	if err != nil {
		return nil, err
	}
	return m.plant(source)
}

// tryAll tries the mutants, some at once, and returns how many were killed and how many were not, until it is
// interrupted.
func (w *workshop) tryAll(all []*mutant, jobs int) (killed, bad int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	work := make(chan *mutant)
	for range max(jobs, 1) {
		wg.Go(func() {
			for m := range work {
				began := time.Now()
				by, err := w.try(m)
				mu.Lock()
				took := time.Since(began).Round(100 * time.Millisecond)
				switch {
				case w.ctx.Err() != nil:
				case err != nil:
					bad++
					fmt.Printf("NOT KILLED  %-50s %8v  %v\n", m.name, took, err)
				default:
					killed++
					fmt.Printf("killed      %-50s %8v  by %s\n", m.name, took, by)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range all {
		if w.ctx.Err() != nil {
			break
		}
		work <- m
	}
	close(work)
	wg.Wait()
	return killed, bad
}
