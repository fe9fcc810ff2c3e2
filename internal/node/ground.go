package node

import (
	"errors"
	"io/fs"
	"sync/atomic"

	"penstock/clog"
	"penstock/internal/node/datadir"
	"penstock/segment/aio"
)

// groundWatch is what the engine remembers of its ground: the files and directories of its data directory. The commit
// log looks at its current file with each group. Everything else is compared once a second, by look: the data
// directory, LOCK, node.json, the folders, the files that recovery needs, and the newest segment of each partition. A
// difference ends the commit log (clog.Log.Lose).
//
// The disk watch calls look, one goroutine at a time, which is the only one that uses the fields. It may hang
// as long as the disk does, and holds no lock that others wait for. A crash loses nothing: the next start recovers from
// what is there.
type groundWatch struct {
	e *Engine

	folders map[string]aio.FileID // what they led to when they were seen first
	noted   bool                  // the copies were listed as shortened, or could not be

	looks atomic.Uint64 // that ended; any goroutine reads it
}

// look compares the ground with what it was, and ends the commit log if something is gone.
func (g *groundWatch) look() {
	defer g.looks.Add(1)
	if g.e.cluster != nil {
		g.e.cluster.ShortenedFor() // so that it begins to count before somebody asks
	}
	failure := g.e.store.Failure()
	lost := clog.Lost(failure)
	if failure == nil {
		if lost = g.lost(); lost != nil {
			g.e.store.CommitLog().Lose(lost)
		}
	}
	if lost != nil && g.e.cluster != nil && !g.noted {
		g.noted = true
		g.noteLost()
	}
}

// lost returns a *aio.GroundError if something is not where it was, or nil.
func (g *groundWatch) lost() error {
	if err := g.e.disk.CheckPlace(); err != nil {
		return err
	}
	if err := g.e.node.CheckGround(); err != nil {
		return err
	}
	for _, name := range datadir.GroundFolders {
		if err := g.checkFolder(name); err != nil {
			return err
		}
	}
	if err := g.e.store.CommitLog().CheckFiles(); err != nil {
		return err
	}
	for _, pt := range g.e.store.Partitions() {
		if err := pt.Log().CheckGround(); err != nil {
			return err
		}
	}
	return nil
}

// checkFolder compares a folder with what was seen first. A folder that was never there is not made yet.
func (g *groundWatch) checkFolder(name string) error {
	is, err := g.e.disk.Identify(name)
	was, seen := g.folders[name]
	switch {
	case seen:
		return aio.CompareGround(name, was, is, err)
	case err == nil:
		g.folders[name] = is
	case !errors.Is(err, fs.ErrNotExist):
		g.e.log.Debug("a folder of the data directory cannot be looked at", "folder", name, "error", err)
	}
	return nil
}

// noteLost lists all copies of this node as shortened, so that after a restart none of them leads before it has
// compared itself with another replica: nobody knows what the disk still has. If the list cannot be written, because
// the directory itself is gone, the next start finds out what is missing.
func (g *groundWatch) noteLost() {
	if _, err := g.e.cluster.shortenAll(); err != nil {
		g.e.log.Warn("it could not be kept for the next start that the copies of this node may lack something", "error", err)
	}
}
