// Command failover measures how long a cluster does not acknowledge anything after its leader is killed, stopped,
// drained or cut off, and judges the history of every run: a figure of a run that lost something is none.
//
//	go run ./tests/cluster/failover -runs 20 -faults kill,pause,rolling
//
// It prints a table: for each fault the time from the fault to the first acknowledgement of a publish that was sent
// after it, and the longest time without any acknowledgement.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

const (
	topic       = "failover"
	stepTimeout = time.Minute
	drainLimit  = time.Minute
)

// faults are what can be measured. Each gets the leader of the only partition and returns when all is as before.
var faults = map[string]func(ctx context.Context, m *measurement, leader *harness.Node) error{
	"kill":    kill,
	"restart": killAndRestart,
	"pause":   pause,
	"rolling": rolling,
}

func main() {
	runs := flag.Int("runs", 10, "faults of each kind")
	nodes := flag.Int("nodes", 3, "nodes of the cluster")
	kinds := flag.String("faults", "kill,restart,pause,rolling",
		"kill: SIGKILL, the node stays away for a while; restart: SIGKILL and start at once; pause: SIGSTOP beyond the "+
			"lease; rolling: drain, SIGTERM, start")
	rate := flag.Int("rate", 500, "publishes per second to each node")
	serve := flag.String("serve", "", "more flags of penstock serve, separated by spaces")
	flag.Parse()
	if err := measure(*runs, *nodes, *rate, strings.Split(*kinds, ","), strings.Fields(*serve)); err != nil {
		fmt.Fprintf(os.Stderr, "failover: %v\n", err)
		os.Exit(1)
	}
}

// measurement is a cluster under load.
type measurement struct {
	c      *harness.Cluster
	run    *workload.Run
	number uint64
}

func measure(runs, nodes, rate int, kinds, serve []string) (err error) {
	for _, k := range kinds {
		if faults[k] == nil {
			return fmt.Errorf("there is no fault %q", k)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "failover")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, harness.Cleanup())
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w\nlogs and history are in %s", err, dir)
		}
	}()
	m, err := begin(ctx, dir, nodes, rate, serve)
	if err != nil {
		return err
	}
	defer func() {
		m.run.StopProducers()
		err = errors.Join(err, m.c.Close())
		m.run.StopConsumers()
		err = errors.Join(err, m.run.Recorder.Close())
	}()
	for i := range runs {
		for _, k := range kinds {
			fmt.Fprintf(os.Stderr, "\r%s %d of %d   ", k, i+1, runs)
			if err := m.one(ctx, k); err != nil {
				return fmt.Errorf("%s %d: %w", k, i+1, err)
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	return m.report(ctx, nodes, rate)
}

func begin(ctx context.Context, dir string, nodes, rate int, serve []string) (*measurement, error) {
	data, records := filepath.Join(dir, "data"), filepath.Join(dir, "history")
	if err := errors.Join(os.Mkdir(data, 0o700), os.Mkdir(records, 0o700)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*stepTimeout)
	defer cancel()
	c, err := harness.Dev(ctx, harness.Options{Dir: data, Nodes: nodes, Serve: serve})
	if err != nil {
		return nil, err
	}
	m := &measurement{
		c: c,
		run: &workload.Run{
			Topic: topic, Recorder: history.NewRecorder(records), Nodes: c.NSQ(), Lookups: c.Lookups(),
			Names: map[string]string{},
		},
	}
	for _, n := range c.Nodes {
		m.run.Names[n.NSQ] = n.Name
	}
	err = errors.Join(c.CreateTopic(ctx, topic), c.Healthy(ctx),
		m.run.CreateChannel("c", true, func() error { return c.CreateChannel(ctx, topic, "c") }))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	m.run.Consume(workload.Consumer{Name: "consumer", Channel: "c"})
	for i := range c.Nodes {
		addresses := slices.Concat(m.run.Nodes[i:], m.run.Nodes[:i])
		m.run.Produce(workload.Producer{Name: fmt.Sprintf("p%d", i+1), Addresses: addresses, Window: 64, PerSecond: rate})
	}
	return m, nil
}

// one does one fault, from rest to rest.
func (m *measurement) one(ctx context.Context, kind string) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := m.acks(ctx, 500); err != nil {
		return err
	}
	leader, err := m.c.Leader(ctx, topic, 0)
	if err != nil {
		return err
	}
	m.number++
	if err := faults[kind](ctx, m, leader); err != nil {
		return err
	}
	m.run.Mark(history.Heal, m.number, kind, leader.Name)
	return m.c.Healthy(ctx)
}

func (m *measurement) mark(kind string, n *harness.Node) {
	m.run.Mark(history.Fault, m.number, kind, n.Name)
}

// acks waits for n more acknowledgements.
func (m *measurement) acks(ctx context.Context, n int) error {
	for want := m.run.Acked() + n; m.run.Acked() < want; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing is acknowledged: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func kill(ctx context.Context, m *measurement, leader *harness.Node) error {
	m.mark("kill", leader)
	if err := leader.Kill(); err != nil {
		return err
	}
	if err := m.acks(ctx, 500); err != nil {
		return err
	}
	return leader.Restart(ctx)
}

func killAndRestart(ctx context.Context, m *measurement, leader *harness.Node) error {
	m.mark("restart", leader)
	if err := leader.Kill(); err != nil {
		return err
	}
	if err := leader.Restart(ctx); err != nil {
		return err
	}
	return m.acks(ctx, 500)
}

func pause(ctx context.Context, m *measurement, leader *harness.Node) error {
	m.mark("pause", leader)
	if err := leader.Pause(); err != nil {
		return err
	}
	err := m.c.Led(ctx, leader.Name)
	if err == nil {
		err = m.acks(ctx, 500)
	}
	return errors.Join(err, leader.Resume())
}

func rolling(ctx context.Context, m *measurement, leader *harness.Node) error {
	m.mark("rolling", leader)
	if err := m.c.Drain(ctx, leader, true); err != nil {
		return err
	}
	if err := m.c.Led(ctx, leader.Name); err != nil {
		return err
	}
	if err := leader.Terminate(stepTimeout); err != nil {
		return err
	}
	if err := leader.Restart(ctx); err != nil {
		return err
	}
	return errors.Join(m.c.Drain(ctx, leader, false), m.acks(ctx, 500))
}

func (m *measurement) report(ctx context.Context, nodes, rate int) error {
	m.run.StopProducers()
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	drained := m.run.Drain(ctx)
	m.run.StopConsumers()
	r := history.Check(m.run.Recorder.Events(), history.Options{ReturnTime: 5 * time.Second})
	fmt.Printf("%d nodes on one machine of %d processors, %d producers of %d publishes per second, topic of one "+
		"partition on all nodes\n\n", nodes, runtime.NumCPU(), nodes, rate)
	if err := r.Print(os.Stdout); err != nil {
		return err
	}
	if !r.OK() {
		return errors.Join(errors.New("the engine broke a promise: these figures are worth nothing"), drained)
	}
	return drained
}
