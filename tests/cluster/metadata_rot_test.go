//go:build cluster

package cluster

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// The files of a node's etcd member are damaged while the node runs, under load. The node ends with exit code 3 and a
// sentence that says so and what to do; the others go on, what it says brings the node back, and nothing is lost. If
// etcd is quicker than who watches the files, the node ends with a trace that names the member, and its next start has
// the exit code and the sentence.
func TestMetadataRotWhileRunning(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for _, n := range s.c.Nodes { // as children of this process, which gets their exit codes
		heal := s.fault("restart", n.Name, func() error { return n.Terminate(stopTimeout) })
		heal(s.restart(n))
		s.healthy()
	}
	db := func(n *harness.Node) string { return filepath.Join(n.DataPath, "etcd", "member", "snap", "db") }
	for i, kind := range []struct {
		name   string
		damage func(n *harness.Node) error
		says   string
	}{
		{
			"the database is cut",
			func(n *harness.Node) error { return os.Truncate(db(n), 16<<10) },
			"snap/db",
		},
		{
			"pages of the database are overwritten",
			func(n *harness.Node) error {
				noise := make([]byte, 100*4096)
				_, _ = rand.Read(noise)
				f, err := os.OpenFile(db(n), os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt(noise, 2*4096)
					err = errors.Join(err, f.Close())
				}
				return err
			},
			"snap/db",
		},
		{
			"the log is cut",
			func(n *harness.Node) error {
				logs, err := filepath.Glob(filepath.Join(n.DataPath, "etcd", "member", "wal", "*.wal"))
				if err == nil && len(logs) > 0 {
					slices.Sort(logs)
					err = os.Truncate(logs[len(logs)-1], 0)
				}
				return err
			},
			"the log in ",
		},
	} {
		n := s.c.Nodes[i%len(s.c.Nodes)]
		from := logBytes(s, n)
		heal := s.fault(kind.name, n.Name, func() error { return kind.damage(n) })
		code := s.endsByItself(n)
		log := s.logSince(n, from)
		t.Logf("%s: exit code %d\n%s", kind.name, code, log[:min(len(log), 2000)])
		if code == 2 && strings.Contains(log, `labels:{"embedded etcd": `) {
			from = logBytes(s, n)
			s.try(n.Start())
			code, log = s.endsByItself(n), s.logSince(n, from)
		}
		if code != 3 || !strings.Contains(log, kind.says) || !strings.Contains(log, "The messages are unharmed. Run `") {
			t.Fatalf("%s: exit code %d, and it says\n%s", kind.name, code, log)
		}
		s.acks(100) // the others go on
		s.rejoin(n)
		heal(s.restart(n))
		s.healthy()
		s.acks(100)
	}
	s.options.LivenessLimit = maxSwitchGap
	s.finish()
}

// endsByItself changes metadata until the node ends, and returns its exit code.
func (s *scenario) endsByItself(n *harness.Node) int {
	s.t.Helper()
	for deadline, i := time.Now().Add(rotPatience), 0; n.Running(); s.pass(200 * time.Millisecond) {
		i++
		_ = s.c.CreateTopic(s.within(startTimeout), fmt.Sprintf("beside-%s-%d", n.Name, i)) // its node may be this one
		if time.Now().After(deadline) {
			s.t.Fatalf("%s goes on; its log ends with\n%s", n.Name, n.LogTail(4<<10))
		}
	}
	code, err := n.Ended()
	s.try(err)
	return code
}

func (s *scenario) logSince(n *harness.Node, from int64) string {
	data, err := os.ReadFile(n.LogPath)
	s.try(err)
	return string(bytes.TrimSpace(data[min(from, int64(len(data))):]))
}

// rejoin sets the files of a stopped node's etcd member aside.
func (s *scenario) rejoin(n *harness.Node) {
	s.t.Helper()
	binary, err := harness.Binary()
	s.try(err)
	cmd := exec.CommandContext(s.within(startTimeout), binary, "rebuild-cluster", "--rejoin", "--yes", n.DataPath)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("rebuild-cluster --rejoin: %v\n%s", err, out)
	}
}
