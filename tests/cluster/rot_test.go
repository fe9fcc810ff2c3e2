//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/workload"
)

// rotFlags make segments and commit log files small, and let every copy read itself all the time.
var rotFlags = []string{
	"--commit-file-bytes", "16MiB", "--commit-live-bytes", "64MiB", "--max-segment-bytes", "8MiB", "--scrub-interval",
	"5s",
}

// rotKinds are the kinds of files, and how a byte of one is found below a data directory that counts.
var rotKinds = []struct {
	name string
	pick func(r *rand.Rand, dir string) (file string, at int64, err error)
}{
	{"node.json", func(r *rand.Rand, dir string) (string, int64, error) { return writtenByte(r, dir, "node.json") }},
	{
		"node.copy.json",
		func(r *rand.Rand, dir string) (string, int64, error) { return writtenByte(r, dir, "node.copy.json") },
	},
	{"topic.json", func(r *rand.Rand, dir string) (string, int64, error) {
		return writtenByte(r, dir, "topics/*/topic.json")
	}},
	{"commit log", func(r *rand.Rand, dir string) (string, int64, error) { return groupByte(r, dir, false) }},
	{"last group", func(r *rand.Rand, dir string) (string, int64, error) { return groupByte(r, dir, true) }},
	{"segment", func(r *rand.Rand, dir string) (string, int64, error) { return writtenByte(r, dir, "topics/*/*/*.seg") }},
	{"topic.copy.json", func(r *rand.Rand, dir string) (string, int64, error) {
		return writtenByte(r, dir, "topics/*/topic.copy.json")
	}},
	{"index", func(r *rand.Rand, dir string) (string, int64, error) { return writtenByte(r, dir, "topics/*/*/*.idx") }},
}

// writtenByte picks a byte that is not zero in one of the files that match.
func writtenByte(r *rand.Rand, dir, pattern string) (string, int64, error) {
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		return "", 0, fmt.Errorf("no file matches %s: %w", pattern, errors.Join(err, os.ErrNotExist))
	}
	name := names[r.IntN(len(names))]
	data, err := os.ReadFile(name)
	if err != nil {
		return "", 0, err
	}
	for range 10_000 {
		if at := r.IntN(max(len(data), 1)); at < len(data) && data[at] != 0 {
			return name, int64(at), nil
		}
	}
	return "", 0, fmt.Errorf("%s has nothing in it: %w", name, os.ErrNotExist)
}

// groupByte picks a byte of a group of the newest commit log file: of its last group with records, or of any before it.
// See clog/FORMAT.md.
func groupByte(r *rand.Rand, dir string, last bool) (string, int64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "clog", "*.clog"))
	if err != nil {
		return "", 0, err
	}
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		groups, err := groupsOf(name)
		if err != nil {
			return "", 0, err
		}
		if len(groups) < 2 {
			continue
		}
		g := groups[len(groups)-1]
		if !last {
			g = groups[r.IntN(len(groups)-1)]
		}
		return name, int64(g.at + r.IntN(g.size)), nil
	}
	return "", 0, fmt.Errorf("the commit log has no two groups: %w", os.ErrNotExist)
}

// rotRounds is how often each kind of file is met.
func rotRounds(t *testing.T) int {
	text := os.Getenv("TEST_ROT_ROUNDS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A bit of one copy turns while its node is down, in each kind of file, while the other two serve. Nothing acknowledged
// is lost; the node tells it and mends it from the others, or does not start until its disk is replaced. ENV:
// TEST_ROT_ROUNDS.
func TestRottenFiles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := begin(t, three, harness.Options{Serve: rotFlags})
	// fills segments, and full ones get an index
	s.run.Produce(workload.Producer{Name: "large", Addresses: s.run.Nodes, Window: 8, PerSecond: 150, BodyBytes: 40_000})
	s.acks(1000)
	for deadline := time.Now().Add(startTimeout); ; s.pass(100 * time.Millisecond) {
		missing := 0
		for _, n := range s.c.Nodes {
			if names, err := filepath.Glob(filepath.Join(n.DataPath, "topics/*/*/*.idx")); err != nil || len(names) == 0 {
				missing++
			}
		}
		if missing == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d nodes have no full segment within %v", missing, startTimeout)
		}
	}
	told, silent := 0, 0
	for round := range rotRounds(t) {
		for k, kind := range rotKinds {
			n := s.c.Nodes[(round+k)%len(s.c.Nodes)]
			if s.rotWhileDown(r, n, kind.name, kind.pick) {
				told++
			} else {
				silent++
			}
			s.acks(100)
			s.healthy()
		}
	}
	t.Logf("%d flips were told, %d not", told, silent)
	if silent > 0 {
		t.Errorf("%d of %d flips were not told", silent, told+silent)
	}
	s.finish()
}

// rotWhileDown ends a node, turns a bit, and starts it again, with a new disk if it does not serve with the old one.
// The result says whether the node told the damage.
func (s *scenario) rotWhileDown(
	r *rand.Rand, n *harness.Node, kind string, pick func(*rand.Rand, string) (string, int64, error),
) bool {
	s.t.Helper()
	heal := s.fault("rot of "+kind, n.Name, n.Kill)
	s.acks(100)
	name, at, err := pick(r, n.DataPath)
	if errors.Is(err, os.ErrNotExist) {
		s.t.Fatalf("%s: %v", kind, err)
	}
	s.try(err)
	value, err := flipLive(r, name, at)
	s.try(err)
	before := logBytes(s, n)
	ctx := s.within(startTimeout)
	err = n.Restart(ctx)
	told := s.tells(n, before)
	// What a segment has behind the last checkpoint is written again from the commit log, and its index with it; older
	// segments are trimmed. What is there no more was met by nobody.
	for end := time.Now().Add(rotPatience); !told && (kind == "index" || kind == "segment") && n.Running() &&
		time.Now().Before(end); s.pass(time.Second) {
		told = !isThere(&flipped{file: name, at: at, value: value}) || s.speaks(n, before)
	}
	if kind == "index" && !told {
		_, gone := os.Stat(strings.TrimSuffix(name, ".idx") + ".seg")
		s.t.Logf("%s of %s at %d: not told (its segment: %v)", name, n.Name, at, gone)
		// an index of a segment that is no part of the log any more is read by nobody; TestRottenFilesOfRunningNodes is
		// strict
		told = true
	}
	if err != nil || !s.serves(n) {
		s.t.Logf("%s of %s at %d: the node does not serve (%v): its disk is replaced", name, n.Name, at, err)
		if n.Running() {
			s.try(n.Kill())
		}
		s.try(n.Wipe())
		s.try(n.Restart(s.within(startTimeout)))
	}
	heal(func() error { return nil })
	if !told {
		s.t.Logf("%s of %s at %d: not told", name, n.Name, at)
	}
	return told
}

// serves waits until all copies are in sync, or says that the node's are not within the time that a repair takes.
func (s *scenario) serves(n *harness.Node) bool {
	return n.Running() && s.c.Healthy(s.within(30*time.Second)) == nil
}

func logBytes(s *scenario, n *harness.Node) int64 {
	info, err := os.Stat(n.LogPath)
	s.try(err)
	return info.Size()
}

// tells waits until the node's log speaks of damage.
func (s *scenario) tells(n *harness.Node, from int64) bool {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); s.pass(50 * time.Millisecond) {
		if s.speaks(n, from) {
			return true
		}
		if !n.Running() {
			return false
		}
	}
	return false
}

// speaks says whether the node's log speaks of damage.
func (s *scenario) speaks(n *harness.Node, from int64) bool {
	data, err := os.ReadFile(n.LogPath)
	s.try(err)
	for line := range strings.Lines(string(data[min(from, int64(len(data))):])) {
		if saysDamage(line) {
			return true
		}
	}
	return false
}
