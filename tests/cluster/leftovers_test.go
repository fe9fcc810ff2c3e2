//go:build cluster

package cluster

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// inventory is all that operations could leave behind, but the rows of the metadata store, of which cluster has a test:
// files, what lookups have registered, and the names and labels of metrics. A line for each.
type inventory map[string]bool

// inventory looks at all nodes that run. The commit log's files and etcd's are left out: they come and go with what is
// published. Segments do so, too, and replicas move: that a node has data of a partition, or a topic's metadata, is one
// item, which misplaced judges.
func (s *scenario) inventory() inventory {
	s.t.Helper()
	all := inventory{}
	for _, n := range s.c.Nodes {
		if !n.Running() {
			continue
		}
		s.filesOf(n, all)
		s.registeredAt(n, all)
		s.metricsOf(n, all)
	}
	return all
}

func (s *scenario) filesOf(n *harness.Node, all inventory) {
	s.t.Helper()
	s.try(filepath.WalkDir(n.DataPath, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went meanwhile
		}
		if err != nil || path == n.DataPath {
			return err
		}
		name, err := filepath.Rel(n.DataPath, path)
		if err != nil {
			return err
		}
		switch parts := strings.Split(name, "/"); {
		case slices.Contains([]string{"clog", "spare", "etcd"}, parts[0]):
			return filepath.SkipDir
		case d.IsDir() || name == "disk.probe": // directories stay, until their topic goes, and they are empty
		case parts[0] == "topics" && len(parts) > 3:
			all["data of "+parts[1]+"/"+parts[2]+" on "+n.Name] = true
		case parts[0] == "topics":
			all["metadata of "+parts[1]+" on "+n.Name] = true
		default:
			all["file "+name+" of "+n.Name] = true
		}
		return nil
	}))
}

func (s *scenario) registeredAt(n *harness.Node, all inventory) {
	s.t.Helper()
	var topics struct{ Topics []string }
	s.try(harness.Get(s.within(startTimeout), n.Lookup, "/topics", &topics))
	for _, t := range topics.Topics {
		var is struct {
			Channels  []string
			Producers []json.RawMessage
		}
		if err := harness.Get(s.within(startTimeout), n.Lookup, "/lookup?topic="+t, &is); err != nil {
			continue // it went meanwhile
		}
		all["registration of "+t] = true
		for _, c := range is.Channels {
			all["registration of "+t+"/"+c] = true
		}
	}
	var nodes struct {
		Producers []struct {
			HTTP int `json:"http_port"`
		}
	}
	s.try(harness.Get(s.within(startTimeout), n.Lookup, "/nodes", &nodes))
	for _, p := range nodes.Producers {
		name := "nobody"
		for _, of := range s.c.Nodes {
			if strings.HasSuffix(of.HTTP, ":"+strconv.Itoa(p.HTTP)) {
				name = of.Name
			}
		}
		all["registration of node "+name+" at "+n.Name] = true
	}
}

// answer returns what a node answers, whatever its status code.
func (s *scenario) answer(n *harness.Node, path string) string {
	s.t.Helper()
	reply, err := http.Get("http://" + n.HTTP + path)
	s.try(err)
	body, err := io.ReadAll(reply.Body)
	s.try(errors.Join(err, reply.Body.Close()))
	return string(body)
}

// metricsOf lists the series, but not of which node they are: leaders move. Requests are counted by their kind, once
// there was one.
func (s *scenario) metricsOf(n *harness.Node, all inventory) {
	s.t.Helper()
	for line := range strings.Lines(s.answer(n, "/metrics")) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "penstock_") &&
			!strings.HasPrefix(name, "penstock_http_requests_total") {
			all["metric "+name] = true
		}
	}
}

// misplaced are data that are not where the metadata wants them, and metadata of topics that do not exist.
func (s *scenario) misplaced(now inventory) (wrong []string) {
	s.t.Helper()
	all, err := s.c.Topics(s.within(startTimeout))
	s.try(err)
	placed := inventory{}
	for _, t := range all.Topics {
		for _, p := range t.Partitions {
			for _, n := range p.Replicas {
				placed["data of "+t.ID+"/"+strconv.Itoa(int(p.Partition))+" on "+n] = true
			}
		}
		for _, n := range s.c.Nodes {
			placed["metadata of "+t.ID+" on "+n.Name] = true
		}
	}
	for item := range now {
		if movable(item) && !placed[item] {
			wrong = append(wrong, item)
		}
	}
	return wrong
}

// tool runs a command of the engine.
func (s *scenario) tool(args ...string) {
	s.t.Helper()
	binary, err := harness.Binary()
	s.try(err)
	args = append(args, "--http-address", s.c.Nodes[0].HTTP)
	if out, err := exec.CommandContext(s.within(2*time.Minute), binary, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("engine %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// fill publishes until the logs have segments.
func (s *scenario) fill(topic string) {
	s.t.Helper()
	body := strings.Repeat("x", 100_000)
	for range 120 {
		reply, err := http.Post("http://"+s.c.Nodes[0].HTTP+"/pub?topic="+topic, "", strings.NewReader(body))
		s.try(err)
		s.try(reply.Body.Close())
	}
}

// Operations leave nothing behind: when one is over, and what it made is gone, there are the same files, registrations
// and metrics as before, and the data of partitions are where the metadata wants them and nowhere else.
func TestOperationsLeaveNothingBehind(t *testing.T) {
	s := prepare(t, harness.Dev, harness.Options{Nodes: 3, Serve: []string{
		"--rebalance-after", "0s", "--commit-file-bytes", "16MiB", "--commit-live-bytes", "33MiB", "--max-segment-bytes",
		"4MiB", "--buffer-bytes", "4MiB", "--max-batch-bytes", "1MiB",
	}})
	_, err := s.c.Join(s.within(startTimeout), "n4")
	s.try(err)
	s.fill(topic)
	calm := func(what string) {
		s.await(what+": no move is left", func(st *harness.Status, _ map[uint32][]string) bool {
			return st.Rebalance.Moves == 0 && !st.Rebalance.Wanted && st.UnderReplicated == 0 && st.Leaderless == 0
		})
	}
	s.tool("cluster", "rebalance", "--wait", "1m")
	calm("at the beginning")
	before := s.inventory()

	after := func(what string) {
		t.Helper()
		calm(what)
		var more, less, wrong []string
		for end := time.Now().Add(40 * time.Second); ; s.pass(200 * time.Millisecond) {
			now := s.inventory()
			more, less, wrong = before.lacks(now), now.lacks(before), s.misplaced(now)
			if len(more)+len(less)+len(wrong) == 0 {
				t.Logf("%s: nothing is left", what)
				return
			}
			if time.Now().After(end) {
				t.Errorf("%s:\nnew:\n%s\ngone:\n%s\nwhere it should not be:\n%s", what, strings.Join(more, "\n"),
					strings.Join(less, "\n"), strings.Join(wrong, "\n"))
				before = now // the next operation is judged by itself
				return
			}
		}
	}
	s.operate(after)
}

func movable(item string) bool {
	return strings.HasPrefix(item, "data of ") || strings.HasPrefix(item, "metadata of ")
}

// lacks are the items of other that i does not have, but those that misplaced judges.
func (i inventory) lacks(other inventory) (all []string) {
	for _, item := range slices.Sorted(maps.Keys(other)) {
		if !i[item] && !movable(item) {
			all = append(all, item)
		}
	}
	return all
}

func (s *scenario) operate(after func(what string)) {
	s.t.Helper()
	s.tool("channel", "create", topic, "goes")
	s.tool("channel", "delete", topic, "goes")
	after("a channel that was deleted")

	s.tool("topic", "create", "goes", "--partitions", "3")
	s.tool("channel", "create", "goes", "c")
	s.fill("goes")
	s.tool("channel", "pause", "goes", "c")
	s.tool("channel", "skip", "goes", "c")
	p, err := s.c.Partition(s.within(startTimeout), "goes", 0)
	s.try(err)
	s.tool("cluster", "move", "goes", "0", "--from", p.Replicas[0], "--to", s.spareOf(p.Replicas))
	s.await("it has moved", func(st *harness.Status, _ map[uint32][]string) bool { return st.Rebalance.Moves == 0 })
	s.tool("topic", "delete", "goes")
	after("a topic that was moved and deleted")

	from, to := s.placed()[0][0], s.spareOf(s.placed()[0])
	s.tool("cluster", "move", topic, "0", "--from", from, "--to", to)
	after("a move")

	from, to = s.placed()[0][1], s.spareOf(s.placed()[0])
	s.tool("cluster", "move", topic, "0", "--from", from, "--to", to)
	s.tool("cluster", "move", topic, "0", "--cancel")
	after("a move that was cancelled")

	s.tool("cluster", "drain", "n2", "--wait", "1m")
	s.await("n2 has no copy", func(st *harness.Status, _ map[uint32][]string) bool {
		return slices.ContainsFunc(st.Nodes, func(n harness.NodeStatus) bool { return n.Name == "n2" && n.Replicas == 0 })
	})
	s.tool("cluster", "drain", "n2", "--off")
	after("a drain")

	s.tool("cluster", "rebalance", "--wait", "1m")
	after("a rebalance")

	s.tool("cluster", "set-replicas", topic, "2")
	s.await("two copies each", func(_ *harness.Status, placed map[uint32][]string) bool { return len(placed[0]) == 2 })
	after("a smaller number of replicas")
	s.tool("cluster", "set-replicas", topic, "3")
	s.await("three copies each", func(_ *harness.Status, placed map[uint32][]string) bool { return len(placed[0]) == 3 })
	after("a larger number of replicas")

	s.tool("cluster", "transfer-leader", topic, "0")
	after("another leader")
	leader, err := s.c.Leader(s.within(startTimeout), topic, 0)
	s.try(err)
	s.tool("cluster", "force-leader", topic, "0", leader.Name, "--yes")
	after("a forced leader")

	fifth, err := s.c.Join(s.within(startTimeout), "n5")
	s.try(err)
	s.tool("cluster", "rebalance", "--wait", "1m")
	s.tool("cluster", "drain", fifth.Name, "--wait", "1m")
	s.await("n5 has no copy", func(st *harness.Status, _ map[uint32][]string) bool {
		return slices.ContainsFunc(st.Nodes, func(n harness.NodeStatus) bool { return n.Name == "n5" && n.Replicas == 0 })
	})
	s.try(fifth.Terminate(stopTimeout))
	s.await("n5 is dead", func(st *harness.Status, _ map[uint32][]string) bool {
		return slices.ContainsFunc(st.Nodes, func(n harness.NodeStatus) bool { return n.Name == "n5" && !n.Live })
	})
	s.tool("cluster", "remove-node", fifth.Name)
	s.c.Forget(fifth)
	after("a node that was removed")
}

// spareOf returns a node that is none of these.
func (s *scenario) spareOf(has []string) string {
	s.t.Helper()
	for _, n := range s.c.Nodes {
		if !slices.Contains(has, n.Name) {
			return n.Name
		}
	}
	s.t.Fatal("every node has a copy")
	return ""
}
