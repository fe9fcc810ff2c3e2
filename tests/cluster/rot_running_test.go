//go:build cluster

package cluster

import (
	"bytes"
	"encoding/binary"
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

const (
	// rotPatience is how long a flip may wait to be told: some rounds of the scrub, on a machine that has other things to
	// do.
	rotPatience = 90 * time.Second
	// rotGrace is how long a log line may come behind the write that mends what it speaks of.
	rotGrace = 5 * time.Second
	// rotTries is how often a flip may be overtaken: the file was rewritten, trimmed or given back before anybody read it.
	rotTries = 20
	// unsettledBytes lie at the end of what is written to a segment: a block there may be written again just now, and a
	// flip would undo that.
	unsettledBytes = 64 << 10
)

// flipped is a bit that was turned in a file of a running node.
type flipped struct {
	kind  string
	file  string
	at    int64
	value byte     // that the byte has since
	words []string // of a log line that tells it
}

// runningKinds are the kinds of files of a node that runs. pick finds a byte that carries a meaning, and the words that
// a line must have to speak of it; os.ErrNotExist: there is none now.
var runningKinds = []struct {
	name string
	pick func(r *rand.Rand, dir string) (file string, at int64, words []string, err error)
}{
	{"node.json", named("node.json")},
	{"node.copy.json", named("node.copy.json")},
	{"topic.json", named("topics/*/topic.json")},
	{"topic.copy.json", named("topics/*/topic.copy.json")},
	{
		"commit log, current file",
		func(r *rand.Rand, dir string) (string, int64, []string, error) { return liveGroupByte(r, dir, true) },
	},
	{
		"commit log, older file",
		func(r *rand.Rand, dir string) (string, int64, []string, error) { return liveGroupByte(r, dir, false) },
	},
	{
		"full segment",
		func(r *rand.Rand, dir string) (string, int64, []string, error) { return segmentByte(r, dir, 0, true) },
	},
	{
		"active segment",
		func(r *rand.Rand, dir string) (string, int64, []string, error) { return segmentByte(r, dir, 1, false) },
	},
	{"segment header", headerByte},
	{"index", named("topics/*/2/*.idx")},
}

// named picks a byte of one of the files that match; a line that speaks of it names the file.
func named(pattern string) func(r *rand.Rand, dir string) (string, int64, []string, error) {
	return func(r *rand.Rand, dir string) (string, int64, []string, error) {
		name, at, err := writtenByte(r, dir, pattern)
		if err != nil {
			return "", 0, nil, err
		}
		return name, at, []string{below(dir, name)}, nil
	}
}

func below(dir, name string) string { return strings.TrimPrefix(strings.TrimPrefix(name, dir), "/") }

// liveGroupByte picks a byte of a group of the newest commit log file, or of an older one. The last groups may not be
// durable yet.
func liveGroupByte(r *rand.Rand, dir string, newest bool) (string, int64, []string, error) {
	const unsettled = 8 // groups
	names, err := filepath.Glob(filepath.Join(dir, "clog", "*.clog"))
	if err != nil {
		return "", 0, nil, err
	}
	slices.Sort(names)
	first := true
	for _, name := range slices.Backward(names) {
		groups, err := groupsOf(name)
		if err != nil || len(groups) == 0 {
			continue // given back meanwhile, or not begun
		}
		if first {
			groups = groups[:max(0, len(groups)-unsettled)]
		}
		if first == newest && len(groups) > 0 {
			g := groups[r.IntN(len(groups))]
			return name, int64(g.at + r.IntN(g.size)), []string{below(dir, name)}, nil
		}
		if first = false; newest {
			break
		}
	}
	return "", 0, nil, fmt.Errorf("no commit log file has such a group: %w", os.ErrNotExist)
}

type groupPlace struct{ at, size int }

// groupsOf are the places of the groups with records in a commit log file. See clog/FORMAT.md.
func groupsOf(name string) (groups []groupPlace, err error) {
	number, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(name), ".clog"), 10, 64)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for at := 0; at+64 <= len(data) && string(data[at:at+4]) == "PCG1"; {
		h := data[at:]
		size := int(binary.LittleEndian.Uint32(h[48:]))
		if binary.LittleEndian.Uint64(h[24:]) != number || size < 64 || at+size > len(data) {
			break
		}
		if binary.LittleEndian.Uint32(h[52:]) > 0 {
			groups = append(groups, groupPlace{at, size})
		}
		at += (size + 4095) &^ 4095
	}
	return groups, nil
}

// segmentsOf are the files of a partition, the active one last.
func segmentsOf(dir string, partition int) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "topics/*", strconv.Itoa(partition), "*.seg"))
	slices.Sort(names)
	return names, err
}

// segmentByte picks a byte of a message in a partition: in a full segment, or in the active one. A line that speaks of
// it names the partition.
func segmentByte(r *rand.Rand, dir string, partition int, full bool) (string, int64, []string, error) {
	names, err := segmentsOf(dir, partition)
	if err != nil || len(names) == 0 || full && len(names) < 2 {
		return "", 0, nil, errors.Join(err, os.ErrNotExist)
	}
	name, keep := names[len(names)-1], unsettledBytes
	if full {
		name, keep = names[r.IntN(len(names)-1)], 0
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return "", 0, nil, err
	}
	end := len(bytes.TrimRight(data, "\x00")) - keep
	for range 10_000 {
		if end <= 4096 {
			break
		}
		if at := 4096 + r.IntN(end-4096); data[at] != 0 {
			return name, int64(at), []string{fmt.Sprintf("partition=%d", partition)}, nil
		}
	}
	return "", 0, nil, fmt.Errorf("%s has nothing in it yet: %w", name, os.ErrNotExist)
}

// headerByte picks a byte of the fields of a segment's header.
func headerByte(r *rand.Rand, dir string) (string, int64, []string, error) {
	names, err := segmentsOf(dir, r.IntN(3))
	if err != nil || len(names) == 0 {
		return "", 0, nil, errors.Join(err, os.ErrNotExist)
	}
	name := names[r.IntN(len(names))]
	return name, int64(r.IntN(88)), []string{below(dir, name), "header"}, nil
}

// Bits of one copy turn while its node runs, in each kind of file at once, under load. Each is told, mended from memory
// or from another replica, and nothing acknowledged is lost. ENV: TEST_ROT_ROUNDS.
func TestRottenFilesOfRunningNodes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := begin(t, three, harness.Options{Serve: slices.Concat(rotFlags, []string{"--scrub-interval", "1s"})})
	s.run.Produce(workload.Producer{Name: "large", Addresses: s.run.Nodes, Window: 8, PerSecond: 60, BodyBytes: 40_000})
	s.acks(500)
	told, harmless := 0, 0
	for round := range rotRounds(t) {
		n := s.c.Nodes[round%len(s.c.Nodes)]
		heal := s.fault("bits of a running node", n.Name, func() error { return nil })
		a, b := s.rotWhileRunning(r, n)
		told, harmless = told+a, harmless+b
		heal(func() error { return n.Ready(s.within(startTimeout)) })
		s.acks(100)
		s.healthy()
	}
	t.Logf("%d flips were told; %d were undone before anybody could read them, and tried again elsewhere", told, harmless)
	s.finish()
}

// rotWhileRunning turns a bit in each kind of file of a node and waits until all are told. It counts those, and those
// that were overtaken.
func (s *scenario) rotWhileRunning(r *rand.Rand, n *harness.Node) (told, overtaken int) {
	s.t.Helper()
	from := logBytes(s, n)
	var open []*flipped
	for i := range runningKinds {
		open = append(open, s.turn(r, n, i))
	}
	tries := map[string]int{}
	for deadline := time.Now().Add(rotPatience); len(open) > 0; s.pass(100 * time.Millisecond) {
		next := open[:0]
		for _, f := range open {
			switch {
			case s.speaksOf(n, from, f):
				told++
				continue
			case s.overtaken(n, from, f):
				overtaken++
				if tries[f.kind]++; tries[f.kind] > rotTries {
					s.t.Fatalf("%s of %s: every flip was overtaken", f.kind, n.Name)
				}
				k := slices.IndexFunc(runningKinds, func(k struct {
					name string
					pick func(r *rand.Rand, dir string) (file string, at int64, words []string, err error)
				},
				) bool {
					return k.name == f.kind
				})
				f, deadline = s.turn(r, n, k), time.Now().Add(rotPatience)
			case time.Now().After(deadline):
				s.t.Fatalf("%s: %s of %s at %d was not told within %v", f.kind, f.file, n.Name, f.at, rotPatience)
			case !n.Running():
				s.t.Fatalf("%s: node %s ended", f.kind, n.Name)
			}
			next = append(next, f)
		}
		open = next
	}
	return told, overtaken
}

// turn waits until a node has a file of a kind, and turns a bit of it.
func (s *scenario) turn(r *rand.Rand, n *harness.Node, kind int) *flipped {
	s.t.Helper()
	k := runningKinds[kind]
	for deadline := time.Now().Add(rotPatience); ; s.pass(100 * time.Millisecond) {
		file, at, words, err := k.pick(r, n.DataPath)
		if err == nil {
			var value byte
			if value, err = flipLive(r, file, at); err == nil {
				return &flipped{k.name, file, at, value, words}
			}
		}
		if !errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			s.t.Fatalf("%s of %s: %v", k.name, n.Name, err)
		}
	}
}

// flipLive turns one bit of a file in place and returns what the byte is then.
func flipLive(r *rand.Rand, name string, at int64) (byte, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return 0, err
	}
	b[0] ^= 1 << r.IntN(8)
	_, err = f.WriteAt(b, at)
	return b[0], errors.Join(err, f.Sync())
}

// speaksOf says whether the node's log tells a flip.
func (s *scenario) speaksOf(n *harness.Node, from int64, f *flipped) bool {
	data, err := os.ReadFile(n.LogPath)
	s.try(err)
	for line := range strings.Lines(string(data[min(from, int64(len(data))):])) {
		names := !slices.ContainsFunc(f.words, func(w string) bool { return !strings.Contains(line, w) })
		if names && saysDamage(line) {
			return true
		}
	}
	return false
}

// saysDamage says whether a log line speaks of stored bytes that are not what was written.
func saysDamage(line string) bool {
	return !strings.Contains(line, "level=INFO") && slices.ContainsFunc(
		[]string{"damage", "not whole", "checksum", "corrupt", "cannot read", "not readable", "not read back"},
		func(word string) bool { return strings.Contains(line, word) })
}

// overtaken says whether what was turned is not there any more, and nobody has met it.
func (s *scenario) overtaken(n *harness.Node, from int64, f *flipped) bool {
	if isThere(f) {
		return false
	}
	for end := time.Now().Add(rotGrace); time.Now().Before(end); s.pass(50 * time.Millisecond) {
		if s.speaksOf(n, from, f) {
			return false
		}
	}
	return true
}

func isThere(f *flipped) bool {
	file, err := os.Open(f.file)
	if err != nil {
		return false
	}
	defer file.Close()
	b := make([]byte, 1)
	_, err = file.ReadAt(b, f.at)
	return err == nil && b[0] == f.value
}
