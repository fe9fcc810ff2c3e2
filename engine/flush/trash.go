package flush

import (
	"path"
	"time"

	"github.com/google/uuid"

	"penstock/engine/dir"
)

// maxTrashDuration bounds how long one emptyTrash deletes files.
const maxTrashDuration = 50 * time.Millisecond

// deadTopic is a deleted topic whose files have not been moved to the trash yet.
type deadTopic struct {
	id      uuid.UUID
	release func() // unpins the commit log files, one of which has the tombstone
}

// TrashLater queues a deleted topic whose files could not be moved to the trash yet. release is called once they were
// moved.
func (f *Flusher) TrashLater(id uuid.UUID, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = append(f.dead, deadTopic{id, release})
}

// trashDead tries to move the files of the queued topics to the trash.
func (f *Flusher) trashDead() {
	f.mu.Lock()
	dead := f.dead
	f.dead = nil
	f.mu.Unlock()
	for _, d := range dead {
		if err := dir.TrashTopic(f.n.Disk, d.id); err != nil {
			f.TrashLater(d.id, d.release)
			continue
		}
		d.release()
	}
}

// emptyTrash deletes the contents of the trash, for about maxTrashDuration: deleting many large files at once stalls
// the whole device if the file system is mounted with discard.
func (f *Flusher) emptyTrash() {
	began := f.n.Host.Instant()
	entries, err := f.n.Disk.ReadDir(dir.Trash)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if f.n.Host.Since(began) > maxTrashDuration || f.stopping() {
			return
		}
		if err := f.n.Disk.RemoveAll(path.Join(dir.Trash, entry.Name())); err != nil {
			f.n.Log.Warn("trash could not be emptied; it is tried again", "name", entry.Name(), "error", err)
			return
		}
	}
}
