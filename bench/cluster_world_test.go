package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/cluster/admin"
	"penstock/tests/support/porttest"
)

// trio is `penstock dev-cluster` with its nodes: real processes on loopback with an embedded etcd, every OK after a
// write and a flush on all in-sync replicas.
type trio struct {
	cmd   *exec.Cmd
	base  int
	nodes map[string]*member
}

type member struct {
	Node   string `json:"node"`
	PID    int    `json:"pid"`
	NSQ    string `json:"nsq"`
	HTTP   string `json:"http"`
	Native string `json:"native"`
}

// patience is how long anything that is no measurement may take.
const patience = 60 * time.Second

// startCluster starts nodes and returns when they are ready. They end with the benchmark. flags go to every node.
func startCluster(b *testing.B, nodes int, flags ...string) *trio {
	b.Helper()
	bin, err := buildOnce()
	if err != nil {
		b.Fatal(err)
	}
	base, err := porttest.Range(10 * nodes)
	if err != nil {
		b.Fatal(err)
	}
	tr := &trio{base: base, nodes: map[string]*member{}}
	tr.cmd = exec.Command(bin, "dev-cluster", "--nodes", fmt.Sprint(nodes), "--data-path", b.TempDir(), "--base-port",
		fmt.Sprint(tr.base), "--", "--cluster-insecure") // this process joins it, without files
	tr.cmd.Args = append(tr.cmd.Args, flags...)
	stdout, err := tr.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := tr.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = tr.cmd.Process.Signal(syscall.SIGTERM)
		_ = tr.cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	for len(tr.nodes) < nodes && lines.Scan() {
		m := new(member)
		if err := json.Unmarshal(lines.Bytes(), m); err != nil {
			b.Fatalf("%v: %s", err, lines.Text())
		}
		tr.nodes[m.Node] = m
	}
	if len(tr.nodes) < nodes {
		b.Fatal("the cluster did not become ready")
	}
	return tr
}

// create makes a topic and returns its row as soon as it has a leader and all replicas are in sync.
func (tr *trio) create(b *testing.B, topic string) admin.Partition {
	b.Helper()
	post(b, tr.nodes["n1"].HTTP, "/topic/create?topic="+topic)
	return tr.await(b, topic, "all replicas are in sync", func(p *admin.Partition) bool {
		return len(p.ISR) == len(p.Replicas)
	})
}

func post(b *testing.B, address, path string) {
	b.Helper()
	resp, err := http.Post("http://"+address+path, "", nil)
	if err != nil {
		b.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s", path, resp.Status)
	}
}

// await looks at a topic's only partition until it is as it should be.
func (tr *trio) await(b *testing.B, topic, what string, ready func(*admin.Partition) bool) admin.Partition {
	b.Helper()
	var seen string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		p, text := tr.partition(topic)
		if p != nil && p.Leader != "" && ready(p) {
			return *p
		}
		seen = text
	}
	b.Fatalf("%s: not within %v; the cluster says %s", what, patience, seen)
	return admin.Partition{}
}

// partition asks n1, which no benchmark stops.
func (tr *trio) partition(topic string) (*admin.Partition, string) {
	resp, err := http.Get("http://" + tr.nodes["n1"].HTTP + "/cluster/topics")
	if err != nil {
		return nil, err.Error()
	}
	defer resp.Body.Close()
	var all admin.Topics
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		return nil, err.Error()
	}
	for i := range all.Topics {
		if t := &all.Topics[i]; t.Name == topic && len(t.Partitions) == 1 {
			return &t.Partitions[0], fmt.Sprintf("%+v", t.Partitions[0])
		}
	}
	return nil, fmt.Sprintf("%+v", all)
}

// at is one node of the cluster as load's target.
func (tr *trio) at(name string) *served {
	m := tr.nodes[name]
	return &served{nsq: m.NSQ, http: m.HTTP, native: m.Native}
}

// pids are the processes of the nodes.
func (tr *trio) pids() (pids []int) {
	for _, m := range tr.nodes {
		pids = append(pids, m.PID)
	}
	return pids
}

// other is a node that is neither of those.
func (tr *trio) other(not ...string) string {
	for i := len(tr.nodes); i > 0; i-- {
		if name := fmt.Sprintf("n%d", i); !strings.Contains(strings.Join(not, " "), name) {
			return name
		}
	}
	panic("BUG: bench: no node is left")
}

// loadBefore is the machine's load average: figures of a machine that does something else say little.
func loadBefore(b *testing.B) (load1 float64) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Sscan(string(data), &load1); err != nil {
		b.Fatal(err)
	}
	return load1
}
