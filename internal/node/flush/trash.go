package flush

import (
	"path"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
)

// maxTrashDuration bounds how long one emptyTrash deletes files.
const maxTrashDuration = 50 * time.Millisecond

// manyTrashEntries is from how many entries on the log says that they are being removed.
const manyTrashEntries = 10_000

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
		if err := datadir.TrashTopic(f.n.Disk, d.id); err != nil {
			f.TrashLater(d.id, d.release)
			continue
		}
		d.release()
	}
}

// emptyTrash deletes the contents of the trash, for about maxTrashDuration, and one entry at least: deleting many large
// files at once stalls the whole device if the file system is mounted with discard. The names of the entries are kept
// from call to call, because listing a large folder takes longer than that.
func (f *Flusher) emptyTrash() {
	if len(f.trash) == 0 {
		entries, err := f.n.Disk.ReadDir(datadir.Trash)
		if err != nil {
			return
		}
		for _, entry := range entries {
			f.trash = append(f.trash, entry.Name())
		}
		if len(f.trash) > manyTrashEntries {
			f.n.Log.Info("much was deleted: the files are removed bit by bit", "entries_in_trash", len(f.trash))
		}
	}
	for began := f.n.Host.Instant(); len(f.trash) > 0 && !f.stopping(); {
		name := f.trash[0]
		f.trash = f.trash[1:] // also if it stays: the others must not wait for it
		if err := f.n.Disk.RemoveAll(path.Join(datadir.Trash, name)); err != nil {
			f.n.Log.Warn("trash could not be emptied; it is tried again", "name", name, "error", err)
			break
		}
		if f.n.Host.Since(began) > maxTrashDuration {
			break
		}
	}
	f.trashCount.Store(int64(len(f.trash)))
}

// TrashEntries returns how many files and folders of the trash are still to be removed, as far as the flusher has
// listed them. Any goroutine may call it.
func (f *Flusher) TrashEntries() int { return int(f.trashCount.Load()) }
