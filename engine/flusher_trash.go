package engine

import (
	"path"

	"github.com/google/uuid"

	"penstock/engine/dir"
)

// trashLater queues a deleted topic whose files could not be moved to the trash yet. release is called when they have
// been.
func (f *flusher) trashLater(id uuid.UUID, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = append(f.dead, deadTopic{id, release})
}

// trashDead tries to move the files of the queued topics to the trash.
func (f *flusher) trashDead() {
	f.mu.Lock()
	dead := f.dead
	f.dead = nil
	f.mu.Unlock()
	for _, d := range dead {
		if err := dir.TrashTopic(f.e.disk, d.id); err != nil {
			f.trashLater(d.id, d.release)
			continue
		}
		d.release()
	}
}

// emptyTrash deletes what is in the trash, for at most maxTrashDuration: to delete many large files at once stalls the
// whole device if the file system is mounted with discard.
func (f *flusher) emptyTrash() {
	began := f.e.host.Instant()
	entries, err := f.e.disk.ReadDir(dir.Trash)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if f.e.host.Since(began) > maxTrashDuration || f.stopping() {
			return
		}
		if err := f.e.disk.RemoveAll(path.Join(dir.Trash, entry.Name())); err != nil {
			f.e.log.Warn("trash could not be emptied; it is tried again", "name", entry.Name(), "error", err)
			return
		}
	}
}
