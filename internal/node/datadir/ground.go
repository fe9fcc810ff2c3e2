package datadir

import (
	"sync/atomic"

	"penstock/segment/aio"
)

// fileGround is what the watch of the engine's ground knows about node.json, which this process replaces now and then.
type fileGround struct {
	// changes is odd while this process may be replacing the file, and grows with each time that it may have. The holder
	// of NodeFile.mu writes it.
	changes atomic.Uint64

	// Used by the one goroutine that calls CheckGround.
	known   aio.FileID
	knownAt uint64 // changes when known was read, and 1; 0: never
}

// CheckGround returns a *aio.GroundError if node.json is not the file any more that this process found or wrote. It
// takes no lock, so it may be called while mu is held by one who waits for the disk. One goroutine at a time calls it.
func (f *NodeFile) CheckGround() error {
	g := &f.ground
	before := g.changes.Load()
	is, err := f.disk.Identify(NodePath)
	if before%2 == 1 || before != g.changes.Load() {
		return nil // it is being replaced: the next call knows
	}
	was := g.known
	if g.knownAt != before+1 {
		was = is
	}
	if lost := aio.CompareGround(NodePath, was, is, err); lost != nil || err != nil {
		return lost
	}
	g.known, g.knownAt = is, before+1
	return nil
}

// GroundFolders are the folders that a node needs besides its files. Each is there for good once it was made.
var GroundFolders = []string{"clog", topicsDir}
