//go:build roll

package cluster

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

const (
	// lastBefore is the last commit before there were feature levels.
	lastBefore = "0462a0b"
	// lastLevel2 is the last commit of feature level 2; its nodes have a port for native clients.
	lastLevel2 = "e262746"
	// newestLevel is the feature level of this version.
	newestLevel = 6
	// maxRefusal is how long publishing may be refused while one node is replaced, by clients that go on to the next one;
	// twenty times as long where the machine is so loaded that a sleep of 10 ms took lateAfter longer.
	maxRefusal  = time.Second
	lateAfter   = 150 * time.Millisecond
	exitData    = 3
	upgradeWait = 2 * time.Minute
)

// lateness measures how late a goroutine that sleeps is woken: how loaded the machine is.
type lateness struct {
	worst atomic.Int64
	stop  chan struct{}
}

func measureLateness(t *testing.T) *lateness {
	l := &lateness{stop: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		const nap = 10 * time.Millisecond
		for {
			began := time.Now()
			select {
			case <-l.stop:
				return
			case <-time.After(nap):
			}
			if late := int64(time.Since(began) - nap); late > l.worst.Load() {
				l.worst.Store(late)
			}
		}
	}()
	t.Cleanup(func() { close(l.stop); <-ended })
	return l
}

// TestRoll replaces the last version before feature levels by this one, node after node under load, and back, and
// forward again, and raises the level. Nothing is lost, consumers go on, nobody is refused for long; afterwards the old
// version is refused.
func TestRoll(t *testing.T) {
	old, current := binaries(t, lastBefore)
	late := measureLateness(t)
	s := begin(t, three, harness.Options{Binary: old})
	roll := func(kind, binary string, nodes ...*harness.Node) {
		t.Helper()
		for _, n := range nodes {
			heal := s.fault(kind, n.Name, func() error { return n.Terminate(stopTimeout) })
			n.Use(binary)
			s.acks(50)
			heal(func() error { return s.returned(n) })
			s.acks(100)
		}
	}
	nodes := s.c.Nodes
	roll("roll forward", current, nodes[:2]...)
	s.upgradeRefused(current, nodes[0], nodes[2].Name)
	roll("roll forward", current, nodes[2])
	s.level(1)
	roll("roll back", old, nodes...)
	roll("roll forward", current, nodes...)
	s.level(1)

	if out, code := engine(t, current, "cluster", "upgrade", "--http", nodes[0].HTTP); code != 0 {
		t.Fatalf("upgrading ended with %d: %s", code, out)
	}
	s.level(newestLevel)
	s.acks(200)
	n := nodes[1]
	heal := s.fault("old version is refused", n.Name, func() error { return n.Terminate(stopTimeout) })
	out, code := engine(t, old, n.Args...)
	if code != exitData || !strings.Contains(out, "newer version") {
		t.Errorf("the old version on a raised directory ended with %d: %s", code, out)
	}
	t.Logf("the old version says: %s", lastLine(out))
	heal(func() error { return s.returned(n) })
	s.acks(200)
	r := s.finish()
	judgeRefusals(t, r, time.Duration(late.worst.Load()))
}

// TestRollInBetween replaces the last version of feature level 2 by this one, and back, and forward again, while an
// ordered channel of one partition has a consumer at each node. So old nodes pass on what new leaders deliver, and new
// nodes what old leaders deliver. Nothing is lost, and nobody gets a message behind a later one.
func TestRollInBetween(t *testing.T) {
	old, current := binaries(t, lastLevel2)
	s := prepare(t, three, harness.Options{Binary: old, Serve: []string{"--default-partitions", "1"}})
	s.options.Ordered = []string{"a"}
	s.try(harness.Post(s.within(startTimeout), s.c.Nodes[0].HTTP, "/channel/settings?topic="+topic+"&channel=a",
		map[string]any{"order": "partition"}, nil))
	for i, n := range s.c.Nodes {
		for _, channel := range []string{"a", "b"} {
			s.run.Consume(workload.Consumer{
				Name: channel + "-at-" + n.Name, Channel: channel, Patient: true, Fixed: []string{n.NSQ}, Ready: 3,
			})
		}
		s.run.Produce(workload.Producer{
			Name: "p-" + n.Name, Addresses: rotated(s.run.Nodes, i), PerSecond: 50, AnswerTimeout: answerTimeout,
		})
	}
	s.acks(60)
	s.level(2)
	first, second, third := s.c.Nodes[0], s.c.Nodes[1], s.c.Nodes[2]
	for _, step := range []struct {
		n      *harness.Node
		binary string
	}{{first, current}, {second, current}, {first, old}, {third, current}, {first, current}} {
		heal := s.fault("roll", step.n.Name, func() error { return step.n.Terminate(stopTimeout) })
		step.n.Use(step.binary)
		s.acks(30)
		heal(func() error { return s.returned(step.n) })
		s.acks(60)
	}
	if out, code := engine(t, current, "cluster", "upgrade", "--http", s.c.Nodes[0].HTTP); code != 0 {
		t.Fatalf("upgrading ended with %d: %s", code, out)
	}
	s.level(newestLevel)
	s.acks(100)
	s.drain = time.Minute
	s.finish()
}

// binaries builds a commit and this version. The test is skipped if the repository does not have the commit.
func binaries(t *testing.T, commit string) (old, current string) {
	t.Helper()
	old, err := harness.BuildCommit(commit)
	if errors.Is(err, harness.ErrNoCommit) {
		t.Skipf("the version before this one cannot be built: %v (fetch the whole history to run this test)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if current, err = harness.Binary(); err != nil {
		t.Fatal(err)
	}
	return old, current
}

// TestRollToLevel3 replaces the last version of feature level 2. While the cluster is at that level, what older
// versions cannot obey is refused by name, at new nodes beside old ones and when all are new. Once the level is raised,
// it works.
func TestRollToLevel3(t *testing.T) {
	old, current := binaries(t, lastLevel2)
	s := prepare(t, three, harness.Options{Binary: old})
	s.level(2)
	nodes := s.c.Nodes
	for i, n := range nodes {
		s.try(n.Terminate(stopTimeout))
		n.Use(current)
		s.try(s.returned(n))
		if i == 1 {
			s.upgradeRefused(current, n, nodes[2].Name)
		}
		s.ofLevel3(current, n, false)
	}
	if out, code := engine(t, current, "cluster", "upgrade", "--http", nodes[0].HTTP); code != 0 {
		t.Fatalf("upgrading ended with %d: %s", code, out)
	}
	s.level(newestLevel)
	for _, n := range nodes {
		s.ofLevel3(current, n, true)
	}
	out, code := engine(t, current, "read", topic, "--nodes", nodes[0].Native)
	if code != 0 || strings.Count(out, "a message\n") != len(nodes) {
		t.Errorf("%d producers published one message each, and read ends with %d: %s", len(nodes), code, out)
	}
}

// ofLevel3 asks a node for all that needs level 3: that works, or is refused with the level, and nothing is changed.
func (s *scenario) ofLevel3(binary string, n *harness.Node, works bool) {
	s.t.Helper()
	channel := "from-" + n.Name
	for _, args := range [][]string{
		{"topic", "set", topic, "--keep-age", "1h", "--http-address", n.HTTP},
		{"topic", "set", topic, "--keep-bytes", "1GiB", "--http-address", n.HTTP},
		{"channel", "create", topic, channel, "--from", "newest", "--http-address", n.HTTP},
		{"pub", topic, "--producer", "import-" + n.Name, "--nodes", n.Native},
	} {
		out, code := engine(s.t, binary, args...)
		// The last one may be served by a leader of the old version.
		named := strings.Contains(out, "feature level 3") || args[0] == "pub" && strings.Contains(out, "does not know a type")
		if (code == 0) != works || !works && !named {
			s.t.Errorf("at %s, with what needs level 3 in force: %v; %q ended with %d: %s", n.Name, works, args, code, out)
		}
	}
	var stats struct {
		Topics []struct {
			Channels []struct {
				Name string `json:"channel_name"`
			} `json:"channels"`
		} `json:"topics"`
	}
	s.try(harness.Get(s.within(startTimeout), n.HTTP, "/stats?format=json&topic="+topic, &stats))
	if len(stats.Topics) != 1 || works != slices.ContainsFunc(stats.Topics[0].Channels, func(c struct {
		Name string `json:"channel_name"`
	},
	) bool {
		return c.Name == channel
	}) {
		s.t.Errorf("at %s, with level 3 in force: %v, the topic is %+v", n.Name, works, stats)
	}
}

// returned starts n again and waits until the cluster is as it was: a FIN on its way to a leader that gives way may be
// forgotten.
func (s *scenario) returned(n *harness.Node) error {
	if err := n.Restart(s.within(startTimeout)); err != nil {
		return err
	}
	return s.c.Settled(s.within(startTimeout))
}

// judgeRefusals looks at the longest time without an acknowledgement in each replacement.
func judgeRefusals(t *testing.T, r *history.Report, late time.Duration) {
	t.Helper()
	var gaps []time.Duration
	for _, w := range r.Windows {
		if strings.HasPrefix(w.Kind, "roll") {
			gaps = append(gaps, w.Gap)
		}
	}
	allowed := maxRefusal
	if late > lateAfter {
		allowed *= 20
	}
	median, worst := history.Percentile(gaps, 50), slices.Max(gaps)
	t.Logf("nothing was acknowledged for: median %v, longest %v, of %d replacements; the machine woke sleepers up to %v "+
		"late", median, worst, len(gaps), late)
	if median > allowed || worst > 5*allowed {
		t.Errorf("publishing was refused for a median of %v and at most %v; %v and %v are allowed",
			median, worst, allowed, 5*allowed)
	}
}

// upgradeRefused asks to raise the level while a node does not know it.
func (s *scenario) upgradeRefused(binary string, at *harness.Node, lacking string) {
	s.t.Helper()
	out, code := engine(s.t, binary, "cluster", "upgrade", "--http", at.HTTP)
	if code == 0 || !strings.Contains(out, lacking) {
		s.t.Errorf("upgrading while %s is old ended with %d: %s", lacking, code, out)
	}
}

// level waits until every node says that a feature level is in force.
func (s *scenario) level(want int) {
	s.t.Helper()
	ctx := s.within(upgradeWait)
	for {
		st, err := s.c.Status(ctx)
		if err == nil && st.Level == want {
			return
		}
		if ctx.Err() != nil {
			s.t.Fatalf("level %d is not in force: %+v, %v", want, st, err)
		}
		s.pass(50 * time.Millisecond)
	}
}

// engine runs a command that ends by itself.
func engine(t *testing.T, binary string, args ...string) (output string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdin = strings.NewReader("a message")
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) || ctx.Err() != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
