//go:build cluster

package cluster

import (
	"context"
	"strings"
	"testing"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

// B79, P10: a node comes back with an empty disk. It is in no ISR until it has everything again.
func TestWipedDisk(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for _, who := range []struct {
		kind string
		node func(uint32) *harness.Node
	}{{"wipe follower", s.follower}, {"wipe leader", s.leader}} {
		n := who.node(0)
		s.crash(who.kind, n, func() {
			s.acks(300)
			s.try(n.Wipe())
		})
		s.acks(300)
		s.healthy()
	}
	s.finish()
}

// small keeps everything on a disk of a few hundred MiB.
var small = []string{"--commit-file-bytes", "16MiB", "--commit-live-bytes", "64MiB", "--max-segment-bytes", "8MiB"}

const (
	volumeBytes = 512 << 20
	leftBytes   = 1 << 20
)

// volume is a small file system for one node. It is unmounted after the node has ended.
func volume(t *testing.T) *harness.Volume {
	t.Helper()
	if err := harness.VolumeMissing(); err != nil {
		t.Skipf("this machine cannot make a small disk: %v", err)
	}
	v, err := harness.NewVolume(t.TempDir(), "disk", volumeBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// D3: the disk of one node's data is full and then has room again. Nothing is lost, and nobody has to restart anything.
// The node's etcd has its files on another disk.
func TestDiskFull(t *testing.T) {
	needNet(t)
	v := volume(t)
	s := begin(t, spread, harness.Options{Volumes: map[int]string{0: v.Path}, Serve: small})
	s.run.Produce(workload.Producer{Name: "large", Addresses: s.run.Nodes, Window: 16, PerSecond: 200, BodyBytes: 100_000})
	s.acks(100)
	heal := s.fault("disk full", s.c.Nodes[0].Name, func() error { return v.Fill(leftBytes) })
	s.pass(2 * lease)
	n := s.c.Nodes[0]
	if !n.Running() {
		t.Error("the node ended, and only its data path is full")
	}
	if !strings.Contains(n.LogTail(1<<20), "the disk is full: publishing is refused") {
		t.Error("the node does not say that its disk is full")
	}
	heal(v.Free)
	s.acks(500)
	s.healthy()
	s.finish()
}

// The same on a single node: publishing is refused with an error that says so, consuming goes on, publishing resumes by
// itself.
func TestSingleDiskFull(t *testing.T) {
	v := volume(t)
	single := func(ctx context.Context, o harness.Options) (*harness.Cluster, error) { return harness.Single(ctx, o) }
	s := begin(t, single, harness.Options{Volumes: map[int]string{0: v.Path}, Serve: small})
	heal := s.fault("disk full", "n1", func() error { return v.Fill(leftBytes) })
	s.pass(lease)
	heal(v.Free)
	s.acks(500)
	refused := 0
	for _, e := range s.run.Recorder.Events() {
		if e.Op == history.Fail && e.Detail != workload.NoConnection {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no publish was refused: the disk was not full")
	}
	s.finish()
}
