// Package offline reads and changes the data directory of a node that does not run: AcceptLoss lets a single node start
// without what its commit log has lost, and Open serves the repair of a cluster whose metadata are lost. Commands use
// it. It takes the lock of the directory, so that no node runs meanwhile. It may import the rooms of the node that know
// files: aside, checkpoint, datadir.
package offline

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/segment/aio"
)

// lockWait lets the last writes of a killed node land: it holds the lock until then.
const lockWait = 3 * time.Second

// Dir is the data directory of a stopped node of a cluster. Its locks are held until Close.
type Dir struct {
	Path    string
	NodeID  string
	StoreID uuid.UUID
	Cluster uuid.UUID // zero: the node belongs to no cluster
	Seen    meta.Seen // the newest metadata that the node saw; zero: not known
	// Partial says that the directory has neither a commit log nor topics: it is a part of one that is elsewhere.
	// Nothing is changed in it.
	Partial bool

	disk  aio.Disk
	level int
}

// Copy says where a copy of a partition ends in a stopped directory.
type Copy struct {
	ID        segment.Identity
	Topic     string // empty: there is no topic.json that names it
	Next      segment.Position
	NextID    segment.MsgID
	Epoch     segment.Epoch // of the last batch
	Shortened bool          // it is listed as such, or the next start will list it
	Discarded bool          // it was given up
}

// Open opens the data directory of a stopped node. It refuses a directory in use, and one that is none.
func Open(path string) (*Dir, error) {
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(path, name))
		return err == nil
	}
	if !has(datadir.NodePath) && !has(datadir.CopyOf(datadir.NodePath)) {
		return nil, fmt.Errorf("engine: %s is not a data directory: it has no %s; nothing was changed",
			path, datadir.NodePath)
	}
	if err := datadir.Check(path, datadir.NewestLevel); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &Dir{Path: path, Partial: !has("clog") && !has("topics") && !has(clog.MarkName)}
	var err error
	s.disk, err = aio.OpenDisk(path, aio.DiskOptions{
		Mode: aio.ModePwrite, ReadOnly: s.Partial, LockWait: lockWait,
	})
	if errors.Is(err, aio.ErrLocked) {
		return nil, fmt.Errorf("engine: a process runs on %s: stop it first; nothing was changed: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	if err := s.readNode(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), s.disk.Close())
	}
	s.Seen, _ = datadir.ReadSeen(s.disk) // one that cannot be read means that less is noticed
	return s, nil
}

// readNode reads node.json. In a part of a directory, its second copy may be missing.
func (s *Dir) readNode() error {
	if s.Partial {
		n := new(datadir.Node)
		data, err := s.disk.ReadFile(datadir.NodePath, datadir.MaxFileBytes)
		if err == nil {
			err = datadir.UnsealFile(data, n, func() error { return n.CheckFormat(datadir.NewestLevel) })
		}
		s.NodeID, s.StoreID, s.Cluster, s.level = n.NodeID, n.StoreID, n.Cluster, n.Level()
		return err
	}
	n, err := datadir.ReadNode(s.disk, datadir.NewestLevel)
	if err != nil {
		return err
	}
	s.NodeID, s.StoreID, s.Cluster, s.level = n.NodeID(), n.StoreID(), n.Cluster(), n.Level()
	return nil
}

func (s *Dir) Close() error { return s.disk.Close() }

// Copies returns the copies that the directory holds, by topic and number. odd says what is wrong with the commit log
// as a whole; empty: nothing. It changes nothing.
func (s *Dir) Copies() (copies []Copy, odd string, err error) {
	if s.Partial {
		return nil, "", nil
	}
	arena, err := datadir.OfflineArena()
	if err != nil {
		return nil, "", err
	}
	ends := &logEnds{parts: map[segment.Identity]*segment.State{}}
	o := clog.Options{Store: s.StoreID, MarkRequired: s.level >= datadir.MarkLevel}
	report, err := clog.Read(s.disk, arena, o, ends)
	var corrupt *segment.CorruptError
	if errors.As(err, &corrupt) {
		odd, err = "its commit log is damaged: "+err.Error(), nil
	}
	if err = errors.Join(err, ends.finish(), arena.Close()); err != nil {
		return nil, "", fmt.Errorf("%s: %w", s.Path, err)
	}
	all := odd != "" || report.Forgotten != nil || report.Tear != nil && !report.Tear.Mark
	if report.Forgotten != nil {
		odd = "its commit log has forgotten something: " + report.Forgotten.Detail
	}
	list, err := datadir.ReadShortened(s.disk)
	if err != nil {
		all = true // as at a start
	}
	names, err := s.topics()
	if err != nil {
		return nil, "", err
	}
	for _, id := range slices.SortedFunc(maps.Keys(ends.parts), segment.Identity.Compare) {
		st := ends.parts[id]
		copies = append(copies, Copy{
			ID: id, Topic: names[id.Topic], Next: st.Next, NextID: st.NextID, Epoch: st.Epoch,
			Shortened: all || list.Has(id) || list.Has(datadir.UnnamedCopies), Discarded: list.IsDiscarded(id),
		})
	}
	return copies, odd, nil
}

// topics returns the names of the topics that the directory describes.
func (s *Dir) topics() (map[uuid.UUID]string, error) {
	each := func(n int, do func(i int)) {
		for i := range n {
			do(i)
		}
	}
	topics, err := datadir.ListTopics(s.disk, slog.New(slog.DiscardHandler), each, func(string, error) {})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	names := map[uuid.UUID]string{}
	for i := range topics {
		names[topics[i].ID] = topics[i].Name
	}
	return names, nil
}

// Distrust lists all copies of the directory as shortened (datadir.Shortened), durably: whether they have everything
// that the node acknowledged is not known any more. Each of them compares itself with others before it leads. It
// returns the number of the copies.
func (s *Dir) Distrust(copies []Copy) (int, error) {
	ids := []segment.Identity{datadir.UnnamedCopies} // a copy that was created and has no record yet is in none
	for i := range copies {
		ids = append(ids, copies[i].ID)
	}
	list, err := datadir.ReadShortened(s.disk)
	if err != nil {
		list = datadir.NewShortened(s.disk) // it cannot be read: what it named is named anew
	}
	if err := list.Add(ids); err != nil {
		return 0, fmt.Errorf("%s: %w", s.Path, err)
	}
	return list.Count() - 1, nil
}

// ReadFile reads a file of the directory; nil: there is none.
func (s *Dir) ReadFile(name string, maxBytes int64) ([]byte, error) {
	data, err := s.disk.ReadFile(name, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return data, nil
}

// WriteFile durably replaces a file of the directory.
func (s *Dir) WriteFile(name string, data []byte) error {
	if err := s.disk.WriteFile(name, data); err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	return nil
}

// RemoveFile durably removes a file of the directory, if it is there.
func (s *Dir) RemoveFile(name string) error {
	err := s.disk.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = errors.Join(err, s.disk.SyncDir(".")); err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	return nil
}
