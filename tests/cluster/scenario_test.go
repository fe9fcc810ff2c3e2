package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/segment"
	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/replicas"
	"penstock/tests/cluster/workload"
	"penstock/tests/powercut/volatile"
)

func TestMain(m *testing.M) {
	volatile.Main()
	code := m.Run()
	if err := harness.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

const (
	topic = "load"
	// startTimeout bounds waits for nodes, drainTimeout that for the last message.
	startTimeout = 60 * time.Second
	drainTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
	// answerTimeout is short so that a producer goes on to another node soon, and what that one does shows.
	answerTimeout = time.Second
	// settle is how long consumers go on listening after everything came: for what comes again and should not.
	settle = 500 * time.Millisecond
	// roundsEnv is how often tests that repeat themselves do so.
	roundsEnv = "TEST_ROUNDS"
)

// rounds is how often a test does what it does; make targets for campaigns set it.
func rounds(t *testing.T, usual int) int {
	t.Helper()
	text := os.Getenv(roundsEnv)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// scenario is one test: nodes, clients, faults, and the judgement at the end.
type scenario struct {
	t       *testing.T
	c       *harness.Cluster
	run     *workload.Run
	options history.Options
	faults  uint64
	drain   time.Duration
	beside  uint64 // messages that the test stored and the history does not know
}

// begin starts nodes and the clients of a usual load.
func begin(
	t *testing.T, how func(context.Context, harness.Options) (*harness.Cluster, error), o harness.Options,
) *scenario {
	t.Helper()
	s := prepare(t, how, o)
	s.load()
	s.acks(200)
	return s
}

// prepare starts nodes and makes the topic with two channels, without clients.
func prepare(
	t *testing.T, how func(context.Context, harness.Options) (*harness.Cluster, error), o harness.Options,
) *scenario {
	t.Helper()
	o.Dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	c, err := how(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	recorder := history.NewRecorder(t.ArtifactDir())
	s := &scenario{
		t: t, c: c, drain: drainTimeout,
		run: &workload.Run{
			Topic: topic, Recorder: recorder, Nodes: c.NSQ(), Lookups: c.Lookups(), Names: map[string]string{},
		},
	}
	for _, n := range c.Nodes {
		s.run.Names[n.NSQ] = n.Name
	}
	t.Cleanup(s.end)
	s.try(c.CreateTopic(ctx, topic))
	s.try(c.Healthy(ctx))
	s.try(s.run.CreateChannel("a", true, func() error { return c.CreateChannel(ctx, topic, "a") }))
	s.try(s.run.CreateChannel("b", false, func() error { return c.CreateChannel(ctx, topic, "b") }))
	return s
}

// end stops whatever still runs; a test that failed shows the nodes' logs.
func (s *scenario) end() {
	s.run.StopProducers()
	err := s.c.Close()
	s.run.StopConsumers()
	if err := errors.Join(err, s.run.Recorder.Close()); err != nil {
		s.t.Error(err)
	}
	if !s.t.Failed() {
		return
	}
	var b strings.Builder
	s.c.PrintLogs(&b, 3<<10)
	s.t.Log(b.String())
	for _, n := range s.c.Nodes { // whole, for whoever keeps artifacts
		if log, err := os.ReadFile(n.LogPath); err == nil {
			_ = os.WriteFile(filepath.Join(s.t.ArtifactDir(), n.Name+".log"), log, 0o600)
		}
	}
}

func (s *scenario) try(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// within is a context for one step.
func (s *scenario) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	s.t.Cleanup(cancel)
	return ctx
}

// load is what every scenario runs under: single publishes pipelined to each node, batches, a go-nsq producer; a
// consumer on the protocol and one of go-nsq.
func (s *scenario) load() {
	s.t.Helper()
	s.run.Consume(workload.Consumer{Name: "c-a", Channel: "a"})
	s.try(s.run.ConsumeGoNSQ(workload.Consumer{Name: "c-b", Channel: "b"}))
	for i := range s.c.Nodes {
		s.run.Produce(workload.Producer{
			Name: fmt.Sprintf("p%d", i+1), Addresses: rotated(s.run.Nodes, i), Window: 16, PerSecond: 200,
			AnswerTimeout: answerTimeout,
		})
	}
	s.run.Produce(workload.Producer{
		Name: "batches", Addresses: rotated(s.run.Nodes, 1), Window: 2, Batch: 10, PerSecond: 20,
		AnswerTimeout: answerTimeout,
	})
	s.run.ProduceGoNSQ(workload.Producer{
		Name: "gonsq", Addresses: rotated(s.run.Nodes, 2), PerSecond: 100, AnswerTimeout: answerTimeout,
	})
}

// rotated begins with another element.
func rotated(all []string, first int) []string {
	first %= len(all)
	return append(append([]string(nil), all[first:]...), all[:first]...)
}

// acks waits until n more values were acknowledged.
func (s *scenario) acks(n int) {
	s.t.Helper()
	want := s.run.Acked() + n
	deadline := time.Now().Add(startTimeout)
	for s.run.Acked() < want {
		if time.Now().After(deadline) {
			s.t.Fatalf("%d more acknowledgements did not come within %v, %d did", n, startTimeout, s.run.Acked()-want+n)
		}
		s.pass(5 * time.Millisecond)
	}
}

// pass lets time pass: a lease or a partition lasts as long as it lasts.
func (s *scenario) pass(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.t.Context().Done():
	}
}

// fault records one and does it; the result heals it and records that.
func (s *scenario) fault(kind, node string, do func() error) (heal func(func() error)) {
	s.t.Helper()
	s.faults++
	number := s.faults
	s.run.Mark(history.Fault, number, kind, node)
	s.try(do())
	return func(undo func() error) {
		s.t.Helper()
		s.try(undo())
		s.run.Mark(history.Heal, number, kind, node)
	}
}

// restart is a heal: the node runs and answers again.
func (s *scenario) restart(n *harness.Node) func() error {
	return func() error { return n.Restart(s.within(startTimeout)) }
}

// crash kills a node, lets the load meet it, and starts the node again.
func (s *scenario) crash(kind string, n *harness.Node, meet func()) {
	s.t.Helper()
	heal := s.fault(kind, n.Name, n.Kill)
	meet()
	heal(s.restart(n))
}

// judge ends the load, waits for what is owed, and returns the checker's judgement.
func (s *scenario) judge() *history.Report {
	s.t.Helper()
	s.run.StopProducers()
	if err := s.run.Drain(s.within(s.drain)); err != nil {
		s.t.Log(err)
	}
	s.pass(settle)
	s.run.StopConsumers()
	s.options.ReturnTime = 5 * time.Second // leaderships move back to nodes that returned within it
	r := history.Check(s.run.Recorder.Events(), s.options)
	var b strings.Builder
	s.try(r.Print(&b))
	s.t.Log("\n" + b.String())
	return r
}

// finish is the usual end: nothing was violated, and the replicas are the same.
func (s *scenario) finish() *history.Report {
	s.t.Helper()
	r := s.judge()
	if !r.OK() {
		s.t.Errorf("the engine broke a promise: %v", r.Counts)
	}
	if r.Acked == 0 || r.Deliveries < r.Acked {
		s.t.Errorf("%d acknowledged, %d deliveries: that was no load", r.Acked, r.Deliveries)
	}
	s.compare(r)
	return r
}

// compare ends all nodes at rest and compares what they hold. They are frozen first: nodes that end one after the
// other, or hand over in an orderly way, leave the beginnings of new epochs behind that nobody committed. // B94
func (s *scenario) compare(r *history.Report) {
	s.t.Helper()
	s.try(s.c.Healthy(s.within(startTimeout)))
	elsewhere := s.elsewhere()
	for _, n := range s.c.Nodes {
		s.try(n.Pause())
	}
	for _, n := range s.c.Nodes {
		s.try(n.Kill())
	}
	var nodes []*replicas.Node
	for _, n := range s.c.Nodes {
		read, err := replicas.Read(n.DataPath)
		if err != nil {
			s.t.Error(err)
			return
		}
		maps.DeleteFunc(read.Logs, func(id segment.Identity, _ replicas.Log) bool {
			return elsewhere[fmt.Sprintf("%s/%d on %s", id.Topic, id.Partition, n.Name)]
		})
		nodes = append(nodes, read)
	}
	result := replicas.Compare(nodes, true)
	for _, d := range result.Differences {
		s.t.Errorf("B94: %v", d)
	}
	messages := replicas.Messages(nodes) - s.beside
	s.t.Logf("replicas: %d partitions on more than one node, %d bytes compared, %d messages",
		result.Partitions, result.Bytes, messages)
	if messages < uint64(r.Acked) || messages > uint64(r.Acked+r.Unknown) {
		s.t.Errorf("%d messages are stored, %d were acknowledged and %d are unknown", messages, r.Acked, r.Unknown)
	}
	if len(nodes) > 1 && (result.Partitions == 0 || result.Bytes == 0) {
		s.t.Error("B94: there was nothing to compare")
	}
}

// elsewhere says which partitions a node holds no replica of: its commit log may still have what it had of them before
// they moved away.
func (s *scenario) elsewhere() map[string]bool {
	s.t.Helper()
	all, err := s.c.Topics(s.within(startTimeout))
	if errors.Is(err, harness.ErrNoCluster) {
		return nil
	}
	s.try(err)
	none := map[string]bool{}
	for _, t := range all.Topics {
		for _, p := range t.Partitions {
			for _, n := range s.c.Nodes {
				if !slices.Contains(p.Replicas, n.Name) {
					none[fmt.Sprintf("%s/%d on %s", t.ID, p.Partition, n.Name)] = true
				}
			}
		}
	}
	return none
}

// usual are the flags of a cluster: every topic in three partitions, and segments so small that they roll all the time.
var usual = []string{"--default-partitions", "3", "--min-segment-bytes", "64KiB"}

// three is the usual cluster: three nodes on loopback.
func three(ctx context.Context, o harness.Options) (*harness.Cluster, error) {
	o.Nodes, o.Serve = 3, slices.Concat(usual, o.Serve)
	return harness.Dev(ctx, o)
}

// healthy waits until every replica is in sync again.
func (s *scenario) healthy() {
	s.t.Helper()
	s.try(s.c.Healthy(s.within(startTimeout)))
}

func (s *scenario) leader(partition uint32) *harness.Node {
	s.t.Helper()
	n, err := s.c.Leader(s.within(startTimeout), topic, partition)
	s.try(err)
	return n
}
