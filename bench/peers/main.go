package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	engines  []engine
	peers    []peer
	works    []work
	rounds   int
	seconds  time.Duration // the measured part of a publishing work
	messages int64         // the backlog of a catch-up
	rate     int           // messages per second of the steady work
	warm     time.Duration // publishing to a server that was just started, before its first work
	dir      string        // where the servers' data go
	cache    string        // for downloads
	out      string        // the directory of the results
	add      bool          // to the results that are there
	draw     bool          // write the page and the plots of the results that are there anew, and measure nothing
	list     bool
}

const (
	maxRounds   = 1000
	maxSeconds  = 600
	maxRate     = 1_000_000
	maxMessages = 100_000_000
)

// parse reads the command line.
func parse(args []string, output io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(output)
	f.Func("engine", "`NAME=PATH` of a binary of Penstock, or PATH; repeat it to compare versions "+
		"(default ../../bin/penstock)", func(text string) error {
		e, err := parseEngine(text)
		o.engines = append(o.engines, e)
		return err
	})
	peers := f.String("peers", "*", "`names` of servers, separated by commas; patterns as in a shell; see -list")
	names := f.String("work", "*", "`names` of works, separated by commas; patterns as in a shell; see -list")
	f.IntVar(&o.rounds, "rounds", 5, "how often each server does each work")
	seconds := f.Float64("seconds", 4, "how long each publishing work is measured")
	f.Int64Var(&o.messages, "messages", 1_000_000, "backlog of a catch-up")
	f.IntVar(&o.rate, "rate", 10_000, "messages per second of the steady work")
	f.DurationVar(&o.warm, "warm", 3*time.Second, "how long a server that was just started is warmed up by publishing")
	f.StringVar(&o.dir, "dir", os.TempDir(), "`directory` on the disk to be measured; the servers' data go below it")
	f.StringVar(&o.cache, "cache", defaultCache(), "`directory` for what is downloaded")
	f.StringVar(&o.out, "out", "", "`directory` for the results: comparison.json, comparison.md and plots; "+
		"empty: print the tables only")
	f.BoolVar(&o.add, "append", false, "add to the results that are in -out")
	f.BoolVar(&o.draw, "draw", false, "write the page and the plots of the results in -out anew; measure nothing")
	f.BoolVar(&o.list, "list", false, "list the servers and works, and end")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if len(o.engines) == 0 {
		e, err := parseEngine("../../bin/penstock")
		if err != nil {
			return nil, err
		}
		o.engines = []engine{e}
	}
	o.seconds = time.Duration(*seconds * float64(time.Second))
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("there is no argument %s; all settings are flags", f.Arg(0))
	case o.rounds < 1 || o.rounds > maxRounds:
		return nil, fmt.Errorf("-rounds must be 1 to %d", maxRounds)
	case *seconds <= 0 || *seconds > maxSeconds:
		return nil, fmt.Errorf("-seconds must be above 0 and at most %d", maxSeconds)
	case o.messages < 1 || o.messages > maxMessages:
		return nil, fmt.Errorf("-messages must be 1 to %d", maxMessages)
	case o.rate < 1 || o.rate > maxRate:
		return nil, fmt.Errorf("-rate must be 1 to %d", maxRate)
	case (o.add || o.draw) && o.out == "":
		return nil, errors.New("-append and -draw need -out, the directory with the results")
	}
	var err error
	if o.peers, err = choose(allPeers(o.engines), func(p peer) string { return p.Name }, *peers); err != nil {
		return nil, fmt.Errorf("-peers: %w", err)
	}
	if o.works, err = choose(allWorks, func(w work) string { return w.Name }, *names); err != nil {
		return nil, fmt.Errorf("-work: %w", err)
	}
	return o, nil
}

// defaultCache is below the user's cache directory, outside of the source.
func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "penstock-bench-peers")
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = o.run(ctx, os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context, stdout io.Writer) error {
	if o.list {
		for _, p := range o.peers {
			fmt.Fprintf(stdout, "server %-16s %d node(s); an OK means: %s\n", p.Name, p.Nodes, p.OK)
		}
		for _, w := range o.works {
			fmt.Fprintf(stdout, "work   %-16s %s\n", w.Name, w.Title)
		}
		return nil
	}
	dir, err := os.MkdirTemp(o.dir, "penstock-peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return err
	}
	r := new(report)
	if o.add || o.draw {
		if r, err = load(filepath.Join(o.out, resultsFile)); err != nil {
			return err
		}
	}
	if o.draw {
		return r.save(o.out)
	}
	r.join(o.peers, allPeers(o.engines), o.works)
	m := &measuring{options: o, report: r, dir: dir}
	if err := m.all(ctx); err != nil {
		return err
	}
	if o.out != "" {
		if err := r.save(o.out); err != nil {
			return err
		}
	}
	return r.markdown(stdout)
}

// save writes the results into a directory.
func (r *report) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, resultsFile), text, 0o644); err != nil {
		return err
	}
	if err := r.plots(filepath.Join(dir, "plots")); err != nil {
		return err
	}
	var b strings.Builder
	if err := r.document(&b); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "comparison.md"), []byte(b.String()), 0o644)
}

// measuring is one call of the program.
type measuring struct {
	*options
	report *report
	dir    string
}

// all measures every turn. A server that cannot be started once is left out from then on.
func (m *measuring) all(ctx context.Context) error {
	c := call{
		Start: time.Now(), Seconds: m.seconds.Seconds(), Messages: m.messages, Rate: m.rate,
		Versions: map[string]string{}, Missing: map[string]string{},
	}
	c.Processors, c.Kernel = machine()
	before, err := measureCommit(m.dir)
	if err != nil {
		return err
	}
	number := len(m.report.Calls)
	for _, t := range turns(m.peers, m.rounds) {
		if _, missing := c.Missing[t.Peer.Name]; missing {
			continue
		}
		version, runs, err := m.turn(ctx, t)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.Missing[t.Peer.Name] = err.Error()
			fmt.Fprintf(os.Stderr, "%s is left out: %v\n", t.Peer.Name, err)
			continue
		}
		c.Versions[t.Peer.Name] = version
		for i := range runs {
			runs[i].Call = number
		}
		m.report.Runs = append(m.report.Runs, runs...)
	}
	after, err := measureCommit(m.dir)
	if err != nil {
		return err
	}
	c.Commits = []commit{before, after}
	m.report.Calls = append(m.report.Calls, c)
	if names := slices.Sorted(maps.Keys(c.Missing)); len(names) == len(m.peers) {
		return fmt.Errorf("no server could be started: %s", strings.Join(names, ", "))
	}
	return nil
}

// turn starts a server in an empty directory, lets it do all works, and removes what it leaves. The error says why the
// server could not be had; a work that fails is an entry with an error.
func (m *measuring) turn(ctx context.Context, t turn) (version string, runs []done, err error) {
	dir := filepath.Join(m.dir, "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), settle(m.dir)) }()
	s, err := t.Peer.start(ctx, place{dir: dir, cache: m.cache})
	if err != nil {
		return "", nil, err
	}
	defer s.stop()
	if m.warm > 0 {
		o := *m.options
		o.seconds = m.warm
		if _, err := closedLoop(1, maxWindow, 1)(ctx, s, "warm", &o); err != nil && !errors.Is(err, errNothing) {
			return "", nil, fmt.Errorf("publishing to a server that was just started: %w", err)
		}
	}
	for _, w := range m.works {
		d := done{Round: t.Round, Peer: t.Peer.Name, Work: w.Name}
		limited, cancel := context.WithTimeout(ctx, workLimit)
		d.sample, err = w.do(limited, s, w.Name, m.options)
		cancel()
		if ctx.Err() != nil {
			return "", nil, ctx.Err()
		}
		if err != nil {
			d.Error = err.Error()
		}
		fmt.Fprintln(os.Stderr, d.line())
		runs = append(runs, d)
	}
	return s.version(), runs, nil
}

// line is what a terminal shows while the program runs.
func (d *done) line() string {
	if d.Error != "" {
		return fmt.Sprintf("round %d %-16s %-8s failed: %s", d.Round+1, d.Peer, d.Work, d.Error)
	}
	return fmt.Sprintf("round %d %-16s %-8s %8s msg/s, p50 %s, p99 %s, server %.2f and client %.2f µs a message",
		d.Round+1, d.Peer, d.Work, count(d.Rate), latency(d.P50), latency(d.P99), d.ServerCPU, d.ClientCPU)
}
