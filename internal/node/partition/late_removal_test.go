package partition

import (
	"context"
	"path"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/replicate"
	"penstock/tests/support/faultaio"
)

// lateStore is a meta.Store whose snapshot is behind: row is what the store has now, and what ReadPartition reads.
type lateStore struct {
	meta.Store
	known, row *meta.Partition
	silent     int // how many calls of ReadPartition fail
	asked      int // how many calls there were
}

func (s *lateStore) Snapshot() *meta.Snapshot {
	return &meta.Snapshot{
		Nodes:      map[replicate.NodeID]*meta.Node{1: {ID: 1}, 2: {ID: 2}, 3: {ID: 3}},
		Topics:     map[uuid.UUID]*meta.Topic{s.known.ID.Topic: {ID: s.known.ID.Topic, Partitions: 1}},
		Partitions: meta.Partitions{}.With(s.known.ID, s.known),
	}
}

func (s *lateStore) ReadPartition(context.Context, meta.PartitionID) (*meta.Partition, error) {
	s.asked++
	if s.silent--; s.silent >= 0 {
		return nil, meta.ErrUnavailable
	}
	if s.row == nil {
		return nil, meta.ErrNotFound
	}
	return s.row, nil
}

// A partition left a node and came back, and the node hears only now that it left. Its copy may be in sync again, and
// leaders may count on it. So before the node removes a byte, it asks the store until it gets an answer.
func TestBytesGoOnlyIfTheStoreStillSaysSo(t *testing.T) {
	row := func(version uint64, nodes ...replicate.NodeID) *meta.Partition {
		p := &meta.Partition{State: replicate.State{Epoch: 3, Version: version, MinISR: 1, Replicas: nodes}}
		for _, n := range nodes {
			p.State.ISR = append(p.State.ISR, replicate.Member{Node: n})
		}
		return p
	}
	outOfSync := row(7, 2, 3)
	outOfSync.State.ISR = outOfSync.State.ISR[:1]
	for name, c := range map[string]struct {
		row    *meta.Partition
		silent int
		gone   bool
	}{
		"it has not come back":            {row: row(4, 2, 3), gone: true},
		"it moved on to others":           {row: row(6, 3), gone: true},
		"it came back":                    {row: row(6, 1, 2, 3)},
		"it left again, and one needs it": {row: outOfSync},
		"the topic is deleted":            {},
		"the store answers late":          {row: row(4, 2, 3), silent: 2, gone: true},
		"it came back, answered late":     {row: row(6, 1, 2, 3), silent: 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := bareReplica()
			r.pt.topic.ID = uuid.UUID{5}
			cn, dir := r.node, datadir.PartitionPath(r.pt.topic.ID, 0)
			disk := diskWithFile(t, dir)
			r.pt.store.disk = disk
			cn.Ctx = t.Context()
			s := &lateStore{known: row(4, 2, 3), row: c.row, silent: c.silent}
			cn.Rows = s
			cn.RemoveIfUnneeded(s.Snapshot(), r.pt, s.known)
			cn.wg.Wait()
			files, err := disk.ReadDir(dir)
			if err != nil || (len(files) == 0) != c.gone {
				t.Errorf("%d files are left (%v); gone must be %v", len(files), err, c.gone)
			}
			if r.IsTearingDown() {
				t.Error("it is still being removed: no new copy could begin")
			}
		})
	}
}

// The store says that the bytes are needed, by a row that is older than the one that the node has heard of while it was
// asking. Nobody reports that newer row again, so the node looks at it again by itself.
func TestRemovalLooksAgainAtARowThatCameWhileItAsked(t *testing.T) {
	for name, c := range map[string]struct {
		read, known uint64 // versions of the row
		again       bool
	}{
		"a newer row came":       {6, 7, true},
		"the row is the newest":  {7, 7, false},
		"the newer row is later": {7, 6, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := bareReplica()
			r.pt.topic.ID = uuid.UUID{5}
			cn, id := r.node, r.pt.Identity()
			cn.Ctx = t.Context()
			r.pt.store.disk = diskWithFile(t, datadir.PartitionPath(r.pt.topic.ID, 0))
			row := func(version uint64, isr ...replicate.Member) *meta.Partition {
				p := &meta.Partition{ID: id, State: replicate.State{Epoch: 3, Version: version, MinISR: 1, ISR: isr}}
				p.State.Replicas = []replicate.NodeID{2, 3}
				return p
			}
			s := &lateStore{known: row(c.known, replicate.Member{Node: 2}, replicate.Member{Node: 3}), row: row(c.read)}
			cn.Rows = s
			r.removing = true
			(&remover{r}).run()
			cn.wg.Wait()
			if r.IsTearingDown() {
				t.Error("it is still being removed")
			}
			later := cn.above.(*nobodyAbove).later
			if again := len(later) > 0; again != c.again || again && (len(later) != 1 || later[0] != id.Partition) {
				t.Errorf("the worker looks again at %v, want %v", later, c.again)
			}
		})
	}
}

// diskWithFile returns a disk with one file in a directory.
func diskWithFile(t *testing.T, in string) *faultaio.Disk {
	t.Helper()
	disk := faultaio.New(faultaio.Options{})
	if err := disk.MkdirAll(in); err != nil {
		t.Fatal(err)
	}
	f, err := disk.Create(path.Join(in, "0000000001.seg"), 4096)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return disk
}

// A node hears of every partition of the cluster. Of those that it has no bytes of, it asks nobody.
func TestNothingToRemoveAsksNobody(t *testing.T) {
	r := bareReplica()
	r.pt.topic.ID = uuid.UUID{5}
	cn := r.node
	cn.Ctx = t.Context()
	r.pt.store.disk = faultaio.New(faultaio.Options{})
	row := &meta.Partition{ID: r.pt.Identity(), State: replicate.State{
		Epoch: 3, Version: 4, MinISR: 1, Replicas: []replicate.NodeID{2}, ISR: []replicate.Member{{Node: 2}},
	}}
	s := &lateStore{known: row, row: row}
	cn.Rows = s
	for range 2 {
		cn.RemoveIfUnneeded(s.Snapshot(), r.pt, row)
		cn.wg.Wait()
	}
	if s.asked != 0 || r.IsTearingDown() {
		t.Errorf("the store was asked %d times", s.asked)
	}
}
