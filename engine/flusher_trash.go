package engine

import (
	"path"

	"github.com/google/uuid"
)

// trashLater keeps a deleted topic until its files could be moved away.
func (f *flusher) trashLater(id uuid.UUID, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = append(f.dead, deadTopic{id, release})
}

func (f *flusher) trashDead() {
	f.mu.Lock()
	dead := f.dead
	f.dead = nil
	f.mu.Unlock()
	for _, d := range dead {
		if err := trashTopicFiles(f.e.disk, d.id); err != nil {
			f.trashLater(d.id, d.release)
			continue
		}
		d.release()
	}
}

// emptyTrash removes what was put away, a little at a time: deleting large files at once on a file
// system mounted with discard stalls the device for everybody.
func (f *flusher) emptyTrash() {
	began := f.e.host.Instant()
	entries, err := f.e.disk.ReadDir(trashDir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if f.e.host.Since(began) > maxTrashDuration || f.stopping() {
			return
		}
		if err := f.e.disk.RemoveAll(path.Join(trashDir, entry.Name())); err != nil {
			f.e.log.Warn("trash could not be emptied; it is tried again", "name", entry.Name(), "error", err)
			return
		}
	}
}
