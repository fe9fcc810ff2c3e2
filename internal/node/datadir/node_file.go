package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/lock"
	"penstock/internal/meta"
	"penstock/segment/aio"
)

// OfflineArena returns the arena with which a commit log is read while no node runs.
func OfflineArena() (*aio.Arena, error) { return aio.NewArena(1<<20, 4) }

// Node is the content of node.json. A directory that starts empty gets a new StoreID, because a node that comes back
// with another disk is another store.
type Node struct {
	Format  int       `json:"format"` // encodes the feature level, see level.go
	NodeID  string    `json:"node_id"`
	StoreID uuid.UUID `json:"store_id"`
	Cluster uuid.UUID `json:"cluster,omitzero"` // the cluster that the node is a member of; zero for a single node
	Lives   []Life    `json:"lives,omitempty"`  // oldest first; of a member of a cluster, from LivesLevel on
}

// NodeFile is the node.json of an open data directory. The engine opens it, raises its level and binds it to a cluster.
// The scrub reads and repairs it. Any goroutine may call the methods.
//
// mu guards node and lives, and is held while the file is read or written, which may hang. NodeID, StoreID and Level do
// not take mu. A crash leaves either the old content or the new one.
type NodeFile struct {
	disk   aio.Disk
	newest int // the highest level that may be written

	mu    lock.Mutex[lock.NodeFile]
	node  Node         // the content of the file; its NodeID and StoreID never change
	lives []Life       // node.Lives; also below LivesLevel, where the file does not have them
	level atomic.Int32 // the level of node

	ground fileGround // has its own rules
}

// OpenNodeFile reads node.json, or creates a new store in an empty directory. It refuses a directory whose level is
// above newest, and the directory of a cluster unless the node is to be a member: alone, it would lead replicas that
// others lead too, and what it acknowledged would contradict theirs. The new store of a cluster member begins at the
// first level, because the cluster that the node will join may be at that level.
func OpenNodeFile(
	disk aio.Disk, log *slog.Logger, nodeID string, newest int, member bool, newUUID func() uuid.UUID,
) (*NodeFile, error) {
	f, err := readNode(disk, log, nodeID, newest)
	if err == nil && !member && f.Cluster() != uuid.Nil {
		return nil, fmt.Errorf("engine: the data directory belongs to node %q of cluster %s, and cannot be used outside of "+
			"it: nothing was changed, start the node with its settings of the cluster (cluster-address, cluster-peers), or "+
			"name another directory", f.NodeID(), f.Cluster())
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	level := newest
	if member {
		level = FirstLevel
	}
	return createNode(disk, nodeID, level, newest, newUUID)
}

// readNode reads node.json. It returns an error if this node must not use the directory, because the directory belongs
// to another node or its level is above newest. It returns fs.ErrNotExist if there is no file.
func readNode(disk aio.Disk, log *slog.Logger, nodeID string, newest int) (*NodeFile, error) {
	var m Node
	var odd error // the error of CheckFormat, returned without wrapping
	_, err := ReadTwice(disk, log, NodePath, func(data []byte) error {
		m = Node{}
		return UnsealFile(data, &m, func() error { odd = m.CheckFormat(newest); return odd })
	})
	if odd != nil {
		return nil, odd
	}
	if err != nil {
		return nil, fmt.Errorf("engine: cannot read %s of the data directory: %w; nothing was changed, restore it from a "+
			"backup", NodePath, err)
	}
	if nodeID != "" && nodeID != m.NodeID {
		return nil, fmt.Errorf("engine: the data directory belongs to node %q, not to %q: nothing was changed, check the "+
			"node id and the data path", m.NodeID, nodeID)
	}
	f := &NodeFile{disk: disk, newest: newest, node: m, lives: m.Lives}
	f.level.Store(int32(m.Level()))
	return f, nil
}

// ReadNode reads the node.json of a stopped node for a command that works on its directory. It refuses a level above
// newest.
func ReadNode(disk aio.Disk, newest int) (*NodeFile, error) {
	f, err := readNode(disk, slog.New(slog.DiscardHandler), "", newest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("engine: it is not a data directory: it has no %s; nothing was changed", NodePath)
	}
	return f, err
}

func createNode(disk aio.Disk, nodeID string, level, newest int, newUUID func() uuid.UUID) (*NodeFile, error) {
	for _, dir := range []string{"clog", topicsDir} {
		if files, err := disk.ReadDir(dir); err == nil && len(files) != 0 {
			return nil, fmt.Errorf("engine: the data directory has files in %s but no %s: nothing was changed, restore the "+
				"file or name an empty directory", dir, NodePath)
		}
	}
	if begun, err := clog.BegunWithoutStore(disk); err != nil {
		return nil, fmt.Errorf("engine: cannot read %s of the data directory: %w", clog.MarkName, err)
	} else if begun {
		return nil, fmt.Errorf("engine: the data directory has the %s of a commit log but no %s: nothing was changed, "+
			"restore what was removed, or name an empty directory", clog.MarkName, NodePath)
	}
	m := Node{Format: FormatOf(level), NodeID: nodeID, StoreID: newUUID()}
	if m.NodeID == "" {
		m.NodeID = newUUID().String()
	}
	// The mark comes first: from node.json on, a directory without one has lost it. If this start ends between the two,
	// the next one makes another store and another mark.
	if err := clog.CreateMark(disk, m.StoreID); err != nil {
		return nil, fmt.Errorf("engine: cannot write to the data directory: %w", err)
	}
	f := &NodeFile{disk: disk, newest: newest, node: m}
	return f, f.write(m)
}

// NodeID returns the node's name, which never changes.
func (f *NodeFile) NodeID() string { return f.node.NodeID }

// StoreID returns the id that tells this directory from every other directory that the node had or will have. It never
// changes.
func (f *NodeFile) StoreID() uuid.UUID { return f.node.StoreID }

// Level returns the directory's feature level, which only rises. The call costs one atomic load.
func (f *NodeFile) Level() int { return int(f.level.Load()) }

// Cluster returns the cluster that the directory belongs to, or the zero UUID. It takes mu.
func (f *NodeFile) Cluster() uuid.UUID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node.Cluster
}

// Raise durably raises the directory to level. It never lowers the level, and refuses a level that this version does
// not know. It takes mu.
func (f *NodeFile) Raise(level int) error {
	if level > f.newest {
		return fmt.Errorf("engine: feature level %d: this version knows %d: %w", level, f.newest, meta.ErrNewerLevel)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.node.Level() >= level {
		return nil
	}
	if level >= MarkLevel {
		if _, err := f.disk.ReadFile(clog.MarkName, MaxFileBytes); err != nil {
			return fmt.Errorf("engine: feature level %d: the data directory has no %s yet; a restart makes it: %w",
				level, clog.MarkName, err)
		}
	}
	next := f.node
	next.Format = FormatOf(level)
	if level >= LivesLevel {
		next.Lives = f.lives
	}
	return f.write(next)
}

// Adopt binds the directory to the cluster for ever. It takes mu.
func (f *NodeFile) Adopt(cluster uuid.UUID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.node.Cluster {
	case cluster:
		return nil
	case uuid.Nil:
	default:
		return fmt.Errorf("engine: the data directory belongs to cluster %s, not to %s: nothing was changed, check the "+
			"addresses of the cluster and the data path", f.node.Cluster, cluster)
	}
	next := f.node
	next.Cluster = cluster
	return f.write(next)
}

// Life says what this directory, whose commit log ends with group end, is to the row that the cluster has of its node;
// nil: none. It takes mu, and changes nothing.
func (f *NodeFile) Life(row *meta.Node, end uint64) meta.Life {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.life(row, end)
}

// life is Life for a caller that holds mu. What this process noted below LivesLevel is not known to the next one, so
// it is not compared.
func (f *NodeFile) life(row *meta.Node, end uint64) meta.Life {
	return judge(f.node.Lives, f.node.StoreID, end, row)
}

// Begin durably notes that the process boot is about to replace the row that the cluster has of this node. The process
// registers after that. The commit log ends with group end. A crash before or after the write leaves a directory that
// Life finds current. The file's copy follows with Registered, because the start waits for Begin. It takes mu.
func (f *NodeFile) Begin(row *meta.Node, end uint64, boot uuid.UUID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	lives := begun(f.node.Lives, f.node.StoreID, row, f.life(row, end), boot)
	return f.keepLives(lives, func(disk aio.Disk, next *Node) error {
		_, err := writeOnce(disk, NodePath, next)
		return err
	})
}

// Registered notes that the process boot has registered. If a crash comes first, more lives count as current than
// need to. It takes mu.
func (f *NodeFile) Registered(boot uuid.UUID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keepLives(registered(f.lives, boot), writeNode)
}

// keepLives replaces the lives in memory and, from LivesLevel on, in the file, by the function write. The caller holds
// mu.
func (f *NodeFile) keepLives(lives []Life, write func(aio.Disk, *Node) error) error {
	if f.node.Level() >= LivesLevel && !slices.Equal(lives, f.node.Lives) {
		next := f.node
		next.Lives = lives
		if err := f.writeBy(next, write); err != nil {
			return err
		}
	}
	f.lives = lives
	return nil
}

// With calls check with the intended content of the file. It holds mu during the call, so check may read and repair the
// file.
func (f *NodeFile) With(check func(known *Node)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ground.changes.Add(1)
	defer f.ground.changes.Add(1)
	check(&f.node)
}

// write durably replaces the content by next. After an error the content in memory is still the old one. The caller
// holds mu, or no other goroutine has f yet.
func (f *NodeFile) write(next Node) error { return f.writeBy(next, writeNode) }

func writeNode(disk aio.Disk, next *Node) error { return WriteTwice(disk, NodePath, next) }

func (f *NodeFile) writeBy(next Node, write func(aio.Disk, *Node) error) error {
	f.ground.changes.Add(1)
	defer f.ground.changes.Add(1)
	if err := write(f.disk, &next); err != nil {
		return fmt.Errorf("engine: cannot write to the data directory: %w", err)
	}
	f.node.Format, f.node.Cluster, f.node.Lives = next.Format, next.Cluster, next.Lives
	f.level.Store(int32(next.Level()))
	return nil
}

// Upgrade raises the data directory of a single node to the newest level, and returns the old and the new level. No
// node may run on the directory. Afterwards older versions refuse the directory. A crash leaves it at either level.
func Upgrade(dir string, newest int) (from, to int, err error) {
	if _, err := os.Stat(filepath.Join(dir, NodePath)); errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("engine: %s is not a data directory: it has no %s; nothing was changed", dir, NodePath)
	}
	if err := Check(dir, newest); err != nil {
		return 0, 0, err
	}
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite, LockWait: aio.ExitTime})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	f, err := readNode(disk, slog.New(slog.DiscardHandler), "", newest)
	if err != nil {
		return 0, 0, err
	}
	if f.Cluster() != uuid.Nil {
		return 0, 0, fmt.Errorf("engine: the data directory belongs to cluster %s: nothing was changed; raise the cluster "+
			"with: penstock cluster upgrade", f.Cluster())
	}
	if from = f.Level(); from < newest {
		err = RenewMark(disk, f.StoreID())
	}
	if err == nil {
		err = f.Raise(newest)
	}
	return from, newest, err
}

// RenewMark makes log.mark say how far the commit log of a stopped node goes: before the directory's level is raised,
// and where an operator accepts that something is missing. A crash leaves the old mark or the new one.
func RenewMark(disk aio.Disk, store uuid.UUID) error {
	arena, err := OfflineArena()
	if err != nil {
		return err
	}
	return errors.Join(clog.RenewMark(disk, arena, store), arena.Close())
}
