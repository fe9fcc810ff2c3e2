package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/lock"
	"penstock/internal/node/backup"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// BackupOptions are the choices for Backups.Start.
type BackupOptions struct {
	// Dir is the absolute path of a directory of the node's machine, outside of the data directory. It must not exist,
	// or be empty.
	Dir string
	// Below is the directory below which Dir must lie, also by symbolic links; empty: it may lie anywhere.
	Below string
	// Rate is the most bytes of segments that are read per second. 0: backup.DefaultRate; below 0: unlimited.
	Rate int64
	// MadeBy is the version of the program, for the manifest.
	MadeBy string
}

// BackupState says what became of a backup.
type BackupState string

// The states of a backup.
const (
	BackupNone    BackupState = "none" // none was begun since Open
	BackupRunning BackupState = "running"
	BackupDone    BackupState = "done"
	// BackupDamaged: it is complete, but messages in it do not read back, on the node as in the backup. It is not the
	// last one that was completed (LastDone), and is restored only by who accepts the loss.
	BackupDamaged BackupState = "damaged"
	BackupFailed  BackupState = "failed" // what had been written was removed
)

// BackupStatus describes the last backup that this process began. The JSON names are those of the HTTP API.
type BackupStatus struct {
	State BackupState `json:"state"`
	Dir   string      `json:"dir,omitempty"`
	Began time.Time   `json:"began,omitzero"`
	// Moment: the state of this moment is in the backup. Set when the commit log has been copied.
	Moment time.Time `json:"moment,omitzero"`
	Ended  time.Time `json:"ended,omitzero"`
	Files  int       `json:"files"` // when it is done
	// CopiedBytes and LinkedBytes so far. LinkedBytes take no space.
	CopiedBytes int64 `json:"copied_bytes"`
	LinkedBytes int64 `json:"linked_bytes"`
	// Missing are the messages that do not read back: the backup is damaged.
	Missing []backup.Missing `json:"missing,omitempty"`
	// NoMetadata says why the cluster's metadata is not in the backup; everything else is. Empty for a single node.
	NoMetadata string `json:"no_metadata,omitempty"`
	Error      string `json:"error,omitempty"`
	// LastDone is the last backup that was completed and verified, whatever came after it; nil: none since Open.
	LastDone *CompleteBackup `json:"last_done,omitempty"`
}

// CompleteBackup says which moment is in which backup.
type CompleteBackup struct {
	Dir    string    `json:"dir"`
	Moment time.Time `json:"moment"`
	Ended  time.Time `json:"ended"`
}

// Errors of Backups.Start.
var (
	// ErrBackupRuns says that a backup is running; there is one at a time.
	ErrBackupRuns = errors.New("engine: a backup is running: wait for its end, then begin another one")
	// ErrBackupDir says that a backup cannot be made in the directory.
	ErrBackupDir = errors.New("engine: no backup can be made there; nothing was written")
)

// maxCopyTries bounds how often the commit log is copied: a file that was released before the backup began may be given
// back while it is copied. No file is released any more, so few tries are enough.
const maxCopyTries = 10

// heldSegment is a segment file that a backup holds under a second name, so that nobody removes it.
type heldSegment struct {
	*segment.HeldFile
	held   string // its second name, relative to the data directory
	linked bool   // nobody changes it any more: it may be linked into the backup
}

// backupRun makes one backup, on a goroutine of its own.
//
//  1. From here on the flusher gives no commit log file back. So everything behind the checkpoint of the oldest file is
//     in the commit log, and everything before it is, synced, in segments.
//  2. Each segment file gets a second name below held/. Retention, deletions and resets remove only the first name.
//  3. The commit log is copied up to its last durable group: this is the moment of the backup. It is behind step 2, so
//     a record of a cut or deletion that step 2 met is in the copy, and recovery handles the segments as after a crash.
//  4. The flusher goes on. The segments are linked into the backup or copied, then come topic.json and node.json.
//  5. In a cluster, its metadata follow. They are of a later moment, so they know every epoch that the logs know. Then
//     comes the manifest.
//
// Steps 2 and 3 take as long as reading the commit log does, at most CommitLiveBytes. Meanwhile at least half of the
// commit log's room is left for puts, unless the flusher was behind already.
//
// A crash leaves second names below held/, which the next Open removes, and a backup without a manifest.
type backupRun struct {
	e        *Engine
	o        BackupOptions
	w        *backup.Writer
	segments []heldSegment
}

// Backups makes the backups of a node, one at a time. Any goroutine may call its methods. mu guards the state of the
// last backup, and nothing is called while it is held.
type Backups struct {
	e *Engine

	mu     lock.Mutex[lock.Backup]
	status BackupStatus
}

// Backups begins backups of this node, and says what became of them.
func (e *Engine) Backups() *Backups { return &e.backups }

// begin notes that a backup begins, and returns what was noted before; false if one is running.
func (b *Backups) begin(s BackupStatus) (before BackupStatus, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status.State == BackupRunning {
		return BackupStatus{}, false
	}
	before = b.status
	s.LastDone = before.LastDone
	b.status = s
	return before, true
}

// Start begins a backup of this node's data, and returns while it is being made: see Status. Everything that was
// answered OK before the call is in it. Publishing and consuming go on. Errors: ErrBackupRuns, ErrBackupDir, ErrClosed,
// the error of Health if the commit log has failed, or one of the environment.
func (b *Backups) Start(o BackupOptions) error {
	e := b.e
	if e.catalog.Closed() {
		return errs.ErrClosed
	}
	if err := e.store.Failure(); err != nil {
		return fmt.Errorf("engine: no backup of a node whose commit log has failed: stop it, and copy its data "+
			"directory: %w", err)
	}
	if err := b.checkDir(&o); err != nil {
		return err
	}
	if o.Rate == 0 {
		o.Rate = backup.DefaultRate
	}
	r := &backupRun{e: e, o: o}
	began := BackupStatus{State: BackupRunning, Dir: o.Dir, Began: e.host.Wall()}
	before, ok := b.begin(began)
	if !ok {
		return ErrBackupRuns
	}
	refused := func() { r.note(func(s *BackupStatus) { *s = before }) }
	var err error
	r.w, err = backup.NewWriter(o.Dir, backup.Options{
		Rate: max(o.Rate, 0), Pause: func(d time.Duration) bool { return e.host.Pause(d, e.stop) }, Blocked: r.blocked,
	})
	if err != nil {
		refused()
		return fmt.Errorf("%w: %w", ErrBackupDir, err)
	}
	// Close closes the catalog before it waits for the goroutines.
	if err := e.catalog.WhileOpen(func() { e.background(r.run) }); err != nil {
		r.w.Discard()
		refused()
		return err
	}
	return nil
}

// removeHeld removes what a backup left that ended with an earlier process.
func (b *Backups) removeHeld() {
	if b.e.opts.DataPath == "" {
		return
	}
	if err := b.e.disk.RemoveAll(datadir.Held); err != nil {
		b.e.log.Warn("what an unfinished backup left could not be removed; it takes space until the next start",
			"directory", datadir.Held, "error", err)
	}
}

// Status returns the state of the last backup.
func (b *Backups) Status() BackupStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	if s.State == "" {
		s.State = BackupNone
	}
	return s
}

// checkDir returns an error if no backup can be made in o.Dir.
func (b *Backups) checkDir(o *BackupOptions) error {
	to := o.Dir
	if b.e.opts.DataPath == "" {
		return fmt.Errorf("%w: the data is on no file system", ErrBackupDir)
	}
	if !filepath.IsAbs(to) {
		return fmt.Errorf("%w: %q is no absolute path on the node's machine", ErrBackupDir, to)
	}
	err := backup.Apart("data directory", b.e.opts.DataPath, to)
	if err == nil && o.Below != "" {
		err = backup.Below(o.Below, to)
	}
	if err == nil {
		err = backup.Seen(to)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBackupDir, err)
	}
	return nil
}

// blocked ends a backup that would use up the space of the data directory.
func (r *backupRun) blocked() error {
	if r.e.store.Flusher().NearlyFull() {
		return errors.New("the disk of the data directory is nearly full, and messages come first")
	}
	r.note(func(s *BackupStatus) { s.CopiedBytes, s.LinkedBytes = r.w.Copied, r.w.Linked })
	return nil
}

func (r *backupRun) note(change func(*BackupStatus)) {
	r.e.backups.mu.Lock()
	defer r.e.backups.mu.Unlock()
	change(&r.e.backups.status)
}

func (r *backupRun) run() {
	began := r.e.backups.Status().Began
	m := &backup.Manifest{MadeBy: r.o.MadeBy, Began: began.Unix()}
	err := r.make(m)
	r.releaseHeld()
	if err != nil {
		r.w.Discard()
	}
	status := BackupDone
	switch {
	case err != nil:
		status = BackupFailed
	case len(m.Missing) > 0:
		status = BackupDamaged
	}
	r.note(func(s *BackupStatus) {
		s.State, s.Ended, s.Missing = status, r.e.host.Wall(), m.Missing
		s.CopiedBytes, s.LinkedBytes, s.Files = r.w.Copied, r.w.Linked, len(m.Files)
		if status == BackupDone {
			s.LastDone = &CompleteBackup{s.Dir, s.Moment, s.Ended}
		} else if err != nil {
			s.Error = err.Error() + "; the node's data is as it was, and what had been written of the backup was removed"
		}
	})
	s := r.e.backups.Status()
	if err != nil {
		r.e.log.Warn("a backup failed; the node's data is as it was, and what had been written of the backup was removed",
			"dir", r.o.Dir, "error", err)
		return
	}
	if status == BackupDamaged {
		r.e.log.Error("a backup has messages that do not read back, on this node as in the backup: it is restored only by "+
			"who accepts the loss. In a cluster they are repaired from another replica: make another backup then",
			"dir", r.o.Dir, "missing", backup.Named(m.Missing))
		return
	}
	r.e.log.Info("a backup is complete", "dir", r.o.Dir, "moment", s.Moment, "files", s.Files,
		"copied_bytes", s.CopiedBytes, "linked_bytes", s.LinkedBytes)
}

func (r *backupRun) make(m *backup.Manifest) error {
	if err := r.e.disk.RemoveAll(datadir.Held); err != nil {
		return err
	}
	if err := r.e.disk.MkdirAll(datadir.Held); err != nil {
		return err
	}
	r.e.catalog.Note()
	err := r.freeze()
	topics := r.e.catalog.Noted()
	if err != nil {
		return err
	}
	for i := range r.segments {
		if err := r.segment(&r.segments[i]); err != nil {
			return err
		}
	}
	m.Missing = r.missing(topics)
	for id, t := range topics {
		if err = r.w.WriteTwice(path.Join(datadir.TopicPath(id), datadir.TopicFile), t); err != nil {
			return err
		}
	}
	if err := r.node(m); err != nil {
		return err
	}
	if err := r.metadata(); err != nil {
		return err
	}
	if err := r.e.disk.CheckPlace(); err != nil {
		return fmt.Errorf("the files may be those of another directory: %w", err)
	}
	return r.w.Commit(m)
}

// freeze does steps 1 to 3.
func (r *backupRun) freeze() error {
	defer r.e.store.Flusher().PinFiles()()
	for _, pt := range r.e.store.Partitions() {
		if err := r.hold(pt); err != nil {
			return err
		}
	}
	log := r.e.store.CommitLog()
	for try := 1; ; try++ {
		moment := r.e.host.Wall()
		err := log.CopyFiles(r.w.Append)
		if err == nil {
			r.note(func(s *BackupStatus) { s.Moment = moment })
			return nil
		}
		if !errors.Is(err, clog.ErrRecycled) || try == maxCopyTries {
			return err
		}
		if err := r.w.Forget("clog"); err != nil {
			return err
		}
		if !r.e.host.Pause(10*time.Millisecond, r.e.stop) {
			return backup.ErrStopped
		}
	}
}

// hold gives the segment files of a partition their second names.
func (r *backupRun) hold(pt *partition.Partition) error {
	if !pt.Replica().HasLog() {
		return nil
	}
	committed := pt.CommittedEnd()
	files, synced := &backup.Files{ID: pt.Identity()}, true
	err := pt.Log().HoldFiles(func(h *segment.HeldFile) error {
		name := path.Join(datadir.Held, fmt.Sprint(len(r.segments)))
		if err := os.Link(r.onDisk(h.Path), r.onDisk(name)); err != nil {
			h.Release()
			return err
		}
		// A cut of a follower's log removes only what is not committed, so nobody writes to the file any more.
		r.segments = append(r.segments, heldSegment{h, name, h.Full && h.End <= committed})
		if synced { // what follows the end of the last sync is in the commit log
			files.Add(h.FileStart, nil)
			files.End = h.End
		}
		synced = synced && h.Full
		return nil
	})
	r.verify(pt, files)
	// The topic is deleted: its tombstone is durable, and will be in the copy of the commit log.
	if gone := errors.Is(err, segment.ErrClosed) || errors.Is(err, fs.ErrNotExist); gone && pt.TopicDeleted() {
		return nil
	}
	return err
}

// verify lets the writer verify the files of a partition, of which the newest ones may be missing.
func (r *backupRun) verify(pt *partition.Partition, files *backup.Files) {
	_, _, files.NextID = pt.Log().End()
	for _, bad := range pt.Log().Isolated() {
		if bad.From >= files.End {
			files.Lack()
			files.End = bad.To
			break
		}
	}
	r.w.Verify(files)
}

// missing lists what does not read back, and lets the log know it, as if a reader had met it. So the damage is repaired
// from another replica, or shown. Errors end here: the log is cut, or has repaired it meanwhile.
func (r *backupRun) missing(topics map[uuid.UUID]*datadir.Topic) []backup.Missing {
	all := r.w.Missing(func(id uuid.UUID) string {
		if t := topics[id]; t != nil {
			return t.Name
		}
		return ""
	})
	if len(all) == 0 {
		return nil
	}
	c := segment.NewChecker()
	defer c.Close()
	for _, pt := range r.e.store.Partitions() {
		for i := range all {
			if all[i].Identity() == pt.Identity() {
				pt.MeetDamage(c, all[i].From)
			}
		}
	}
	return all
}

func (r *backupRun) onDisk(name string) string {
	return filepath.Join(r.e.opts.DataPath, filepath.FromSlash(name))
}

// segment brings a segment into the backup, and ends the hold.
func (r *backupRun) segment(s *heldSegment) error {
	err := error(nil)
	if s.linked {
		err = r.w.Link(s.Path, r.onDisk(s.held))
	} else {
		err = r.w.Copy(s.Path, r.onDisk(s.held), s.Bytes)
	}
	return errors.Join(err, r.release(s))
}

func (r *backupRun) release(s *heldSegment) error {
	if s.HeldFile == nil {
		return nil
	}
	err := os.Remove(r.onDisk(s.held))
	s.Release()
	s.HeldFile = nil
	return err
}

func (r *backupRun) releaseHeld() {
	for i := range r.segments {
		_ = r.release(&r.segments[i])
	}
	_ = r.e.disk.RemoveAll(datadir.Held) // the next backup or Open tries again
}

// node writes node.json and, in a cluster, the list of shortened copies. The list is read from its file: it is newer
// than the moment of the backup, and every copy counts as shortened after a restore anyway.
func (r *backupRun) node(m *backup.Manifest) error {
	var known datadir.Node
	r.e.node.With(func(n *datadir.Node) { known = *n })
	m.NodeID, m.Cluster = known.NodeID, known.Cluster
	if err := r.w.WriteTwice(datadir.NodePath, &known); err != nil {
		return err
	}
	list, err := r.e.disk.ReadFile(datadir.ShortenedFile, datadir.MaxShortenedBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.w.Write(datadir.ShortenedFile, slices.Clone(list))
}

// metadata writes the cluster's metadata. A node whose store does not answer can still be backed up.
func (r *backupRun) metadata() error {
	cn := r.e.cluster
	if cn == nil {
		return nil
	}
	ctx, cancel := r.e.host.WithTimeout(cn.Ctx, partition.StoreTimeout)
	defer cancel()
	data, err := cn.Rows.Export(ctx)
	if err != nil {
		r.note(func(s *BackupStatus) { s.NoMetadata = err.Error() })
		return nil
	}
	return r.w.Write(backup.MetadataFile, data)
}
