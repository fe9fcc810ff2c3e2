package cluster

import (
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/tests/support/kvfile"
)

// A single node keeps its metadata in a file. After a restart its topics are there, and each partition has a new epoch
// of the new process. B79, B93
func TestSingleNodeOnFile(t *testing.T) {
	path, disk := filepath.Join(t.TempDir(), "meta"), uuid.New()
	var identity uuid.UUID
	for run := range 3 {
		kv, err := kvfile.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		boot := uuid.New()
		s := New(kv, Options{})
		led := make(chan struct{}, 1)
		node, err := s.Join(ctx(t), meta.Registration{
			Node: meta.Node{Name: "n", Store: disk, Boot: boot},
			Changed: func(c *meta.Change) {
				if topic := c.Snapshot.Names["x"]; topic != nil && c.Snapshot.Partitions.Get(part(topic, 0)).State.Boot == boot {
					poke(led)
				}
			},
		})
		if err != nil || node.ID != 1 {
			t.Fatalf("%+v, %v", node, err)
		}
		if run == 0 {
			identity = s.Snapshot().Cluster
			if _, err := s.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1}); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-led:
		case <-ctx(t).Done():
			t.Fatal("nobody leads")
		}
		snap := s.Snapshot()
		if st := snap.Partitions.Get(part(snap.Names["x"], 0)).State; int(st.Epoch) != run+1 || len(st.Replicas) != 1 ||
			snap.Cluster != identity {
			t.Errorf("run %d: %+v", run, st)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := kv.Close(); err != nil {
			t.Error(err)
		}
	}
}
