package partition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/logread"
	"penstock/internal/node/machine"
	"penstock/replicate"
	"penstock/segment"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/logtest"
)

// ofList returns a replica without a log. Its node keeps the list of shortened copies on disk, like a process that
// starts on that disk.
func ofList(t *testing.T, disk *faultaio.Disk) *Replica {
	t.Helper()
	r := bareReplica()
	r.pt.topic.ID = uuid.UUID{7}
	var err error
	if r.node.Shortened, err = datadir.ReadShortened(disk); err != nil {
		t.Fatal(err)
	}
	return r
}

// listed says whether the file marks the copy of r as dropped.
func listed(t *testing.T, disk *faultaio.Disk, r *Replica) bool {
	t.Helper()
	s, err := datadir.ReadShortened(disk)
	if err != nil {
		t.Fatal(err)
	}
	return s.IsDiscarded(r.pt.Identity())
}

// The commit log releases the batches that a dropped copy lacks only after the list says that the copy was dropped,
// however often the flusher asks. And a copy that has begun anew acknowledges nothing before the list has stopped
// saying so, however often that is tried. A write that fails may have been done all the same.
func TestDroppedIsKeptBeforeTheLogLetsGo(t *testing.T) {
	for _, kind := range []faultaio.Kind{faultaio.KindWrite, faultaio.KindSyncDir} {
		disk := faultaio.New(faultaio.Options{})
		r := ofList(t, disk)
		if r.mayReleaseFiles() {
			t.Fatal("it is not given up")
		}
		r.discarded.Store(true)
		r.cut = &logCut{reset: true} // its leader needs nothing of it
		fails := faultaio.Rule{Kind: kind, Count: -1, Err: syscall.EIO}
		disk.Inject(fails)
		for range 3 {
			if r.mayReleaseFiles() {
				t.Fatalf("kind %d: the log lets go, and the list could not be written", kind)
			}
		}
		disk.ClearRules()
		for range 2 {
			if !r.mayReleaseFiles() || !listed(t, disk, r) {
				t.Fatalf("kind %d: the log keeps it, or the list does not say it", kind)
			}
		}
		disk.Inject(fails)
		for range 3 {
			if r.clearDiscarded() == nil || !r.discarded.Load() {
				t.Fatalf("kind %d: it has begun anew, and the list could not be written", kind)
			}
		}
		disk.ClearRules()
		if err := r.clearDiscarded(); err != nil || r.discarded.Load() || listed(t, disk, r) {
			t.Fatalf("kind %d: %v, given up %v, listed %v", kind, err, r.discarded.Load(), listed(t, disk, r))
		}
	}
}

// A recovery that cuts a group notes in the list that there may be copies of which it knows nothing, whenever its
// process ends. The first process that hears from the store which copies are on this node names them. They stay in the
// list, although the commit log does not mention them, until they are whole or not on this node any more.
func TestShortenedCopiesAreNamed(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	mine, other, gone := uuid.UUID{7}, uuid.UUID{8}, uuid.UUID{9}
	rows := func(replicas map[uuid.UUID]replicate.NodeID) *meta.Snapshot {
		snap := &meta.Snapshot{}
		for id, n := range replicas {
			row := &meta.Partition{}
			row.State.Replicas = []replicate.NodeID{n}
			snap.Partitions = snap.Partitions.With(meta.PartitionID{Topic: id}, row)
		}
		return snap
	}
	process := func(torn bool, snap *meta.Snapshot) *datadir.Shortened {
		t.Helper()
		r := bareReplica()
		r.pt.store.disk = disk
		if err := r.node.noteShortened(NewRecovery(r.pt.store).Log, torn, true); err != nil {
			t.Fatal(err)
		}
		if snap != nil {
			if err := r.node.ListUnnamed(snap); err != nil {
				t.Fatal(err)
			}
		}
		return r.node.Shortened
	}
	list := func(s *datadir.Shortened) (ids []uuid.UUID) {
		for _, id := range []uuid.UUID{{}, mine, other, gone} {
			if s.Has(segment.Identity{Topic: id}) {
				ids = append(ids, id)
			}
		}
		slices.SortFunc(ids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		return ids
	}
	here := rows(map[uuid.UUID]replicate.NodeID{mine: 1, other: 2, gone: 1})
	for _, step := range []struct {
		what string
		torn bool
		snap *meta.Snapshot
		want []uuid.UUID
	}{
		{"nothing is cut", false, here, nil},
		{"it does not join", true, nil, []uuid.UUID{{}}},
		{"nor does the next", false, nil, []uuid.UUID{{}}},
		{"it joins", false, here, []uuid.UUID{mine, gone}},
		{"a topic is new", false, rows(map[uuid.UUID]replicate.NodeID{mine: 1, other: 1, gone: 1}), []uuid.UUID{mine, gone}},
		{"a copy has moved away", false, rows(map[uuid.UUID]replicate.NodeID{mine: 1, gone: 2}), []uuid.UUID{mine}},
		{"its topic is deleted", false, rows(nil), nil},
	} {
		if is := list(process(step.torn, step.snap)); !slices.Equal(is, step.want) {
			t.Errorf("%s: %v are in the list, want %v", step.what, is, step.want)
		}
	}
}

// The scrub reads the list of shortened copies, and writes it anew if a bit of it has changed, even one that changes no
// name. A file that is as this process, or the one before, wrote it stays.
func TestScrubShortened(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	r := ofList(t, disk)
	var scrubbed uint64
	mended := func() uint64 {
		if damaged, _, _ := r.node.Shortened.Scrub(); damaged {
			scrubbed++
		}
		return scrubbed
	}
	if mended() != 0 {
		t.Fatal("there is no list")
	}
	other := segment.Identity{Topic: uuid.UUID{8}, Partition: 300}
	if err := r.node.Shortened.Add([]segment.Identity{other}); err != nil {
		t.Fatal(err)
	}
	if err := r.node.Shortened.SetDiscarded(r.pt.Identity(), true); err != nil {
		t.Fatal(err)
	}
	for _, process := range []string{"this process", "the one before"} {
		if mended() != 0 {
			t.Fatalf("what %s wrote is written again", process)
		}
		r = ofList(t, disk)
	}
	if !listed(t, disk, r) || r.node.Shortened.IsDiscarded(other) {
		t.Fatal("who was dropped?")
	}
	was, err := disk.ReadFile(datadir.ShortenedFile, datadir.MaxShortenedBytes)
	if err != nil {
		t.Fatal(err)
	}
	whole := func() bool {
		is, err := disk.ReadFile(datadir.ShortenedFile, datadir.MaxShortenedBytes)
		return err == nil && string(is) == string(was)
	}
	count := uint64(0)
	for bit := range len(was) * 8 {
		if !disk.Corrupt(datadir.ShortenedFile, []byte{was[bit/8] ^ 1<<(bit%8)}, int64(bit/8)) {
			t.Fatal("no file")
		}
		if count++; mended() != count || !whole() || mended() != count {
			t.Fatalf("bit %d: mended %d times of %d, whole %v", bit, mended(), count, whole())
		}
	}
	if err := disk.Remove(datadir.ShortenedFile); err != nil {
		t.Fatal(err)
	}
	if count++; mended() != count || !whole() {
		t.Error("a list that is gone is not written again")
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: datadir.ShortenedFile, Count: 1, Err: syscall.EIO})
	for range 2 {
		if mended() != count {
			t.Error("a list that cannot be read just now is written again")
		}
	}
}

// A copy that was dropped is registered as damaged when the node joins. A dropped copy that has moved away since does
// not count as dropped when the partition comes back, in this process or after a restart.
func TestDroppedCopyThatMovedAway(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	r := ofList(t, disk)
	r.pt.store.disk = disk
	log, err := segment.Open(disk, "p", r.pt.Identity(), segment.State{}, segment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r.pt.log, r.pt.machine = log, new(machine.Partition)
	r.pt.store.Add([]*Partition{r.pt})
	if ids, _ := r.node.store.DamagedCopies(); len(ids) != 0 {
		t.Fatalf("%v are damaged", ids)
	}
	r.discarded.Store(true)
	r.cut = &logCut{reset: true} // its leader needs nothing of it
	if ids, _ := r.node.store.DamagedCopies(); len(ids) != 1 || ids[0] != r.pt.Identity() {
		t.Errorf("%v are damaged", ids)
	}
	if !r.mayReleaseFiles() {
		t.Fatal("the log keeps it")
	}
	r.cut = nil
	if err := (&remover{r}).removeBytes(); err != nil || r.discarded.Load() || listed(t, disk, r) {
		t.Errorf("%v, given up %v, listed %v", err, r.discarded.Load(), listed(t, disk, r))
	}
	if s, err := datadir.ReadShortened(disk); err != nil || s.Count() != 0 || r.node.Shortened.Count() != 0 {
		t.Errorf("it counts as shortened and is gone (%v)", err)
	}
}

// The disk is full when a copy that moved away is removed, or the process lacks descriptors or memory. The removal ends
// as soon as there is some, and not only after a restart: until then the node would keep what nobody needs, and the
// partition could not come back to it.
func TestRemovalOnAFullDisk(t *testing.T) {
	for _, rule := range []faultaio.Rule{
		{Kind: faultaio.KindWrite, Name: datadir.ShortenedFile + "*", Err: syscall.ENOSPC},
		{Kind: faultaio.KindCreate, Name: datadir.ShortenedFile + "*", Err: syscall.EMFILE},
		{Kind: faultaio.KindCreate, Name: datadir.ShortenedFile + "*", Err: syscall.ENOMEM},
		{Kind: faultaio.KindSyncDir, Name: logtest.Dir, Err: syscall.EMFILE},
		{Kind: faultaio.KindMkdir, Name: datadir.Trash, Err: syscall.ENOMEM},
		{Kind: faultaio.KindRename, Name: logtest.Dir + "/*", Err: syscall.ENOMEM},
	} {
		t.Run(fmt.Sprint(rule.Kind, " ", rule.Name, " ", rule.Err), func(t *testing.T) { removalWaits(t, rule) })
	}
}

func removalWaits(t *testing.T, rule faultaio.Rule) {
	t.Parallel()
	log := logtest.New(t, segment.Sizes{MinSegmentBytes: 16 << 10, MaxSegmentBytes: 16 << 10})
	for range 3 {
		log.Put(100, 100, 1)
	}
	log.Flush()
	r := ofList(t, log.Disk)
	r.pt.store.disk = log.Disk
	r.pt.log, r.pt.machine = log.Log, new(machine.Partition)
	if err := r.node.Shortened.Add([]segment.Identity{r.pt.Identity()}); err != nil {
		t.Fatal(err)
	}
	rule.Count = 2
	log.Disk.Inject(rule)
	if err := (&remover{r}).removeBytes(); err != nil {
		t.Errorf("given up: %v", err)
	}
	if s, err := datadir.ReadShortened(log.Disk); err != nil || s.Count() != 0 || log.Bytes() != 0 {
		t.Errorf("it is still listed (%v), or has %d bytes", err, log.Bytes())
	}
}

// A copy that is being removed does not hold commit log files. But the batches in the files that are released may have
// been the only ones of the copy. So the list first says that the copy was dropped. Otherwise the next process would
// take the rest for the whole copy.
func TestRemovedCopyIsListedBeforeTheLogLetsGo(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	s := runStore(t, disk)
	s.publish(t, 1, 1)
	r := ofList(t, disk)
	r.pt.log, r.removing = s.part.log, true
	if _, ok := r.pt.log.OldestUnsyncedFileSeq(); !ok {
		t.Fatal("the segments have it")
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Name: datadir.ShortenedFile + "*", Count: -1, Err: syscall.EIO})
	if !r.pt.HoldsFiles() {
		t.Error("the log lets go, and the list could not be written")
	}
	disk.ClearRules()
	if r.pt.HoldsFiles() || !listed(t, disk, r) {
		t.Error("the log keeps it, or the list does not say it")
	}
}

// The flusher passes over a copy that nobody needs, and asks once more before it releases files (flush.releaseLimit).
// If the copy is opened again in between, and reads, it needs the batches that its segments lack, like any other copy.
func TestCopyThatIsNeededHoldsFiles(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	r := ofList(t, disk)
	r.discarded.Store(true)
	r.cut = &logCut{reset: true} // its leader needs nothing of it
	if !r.pt.NeedsNoFlush() {
		t.Fatal("somebody needs it")
	}
	r.cut = nil
	r.discarded.Store(false) // as reopen does
	if !r.pt.HoldsFiles() || listed(t, disk, r) {
		t.Error("the commit log lets go of the batches of a copy that is whole")
	}
}

func isClosed(pt *Partition) bool { return pt.WhyClosed() != nil }

// The inbox of a copy whose segments could not be written stays closed until the copy has another log. Here its bytes
// were removed because the copy moved away, and it may come back.
func TestInboxOpensForAnotherLog(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	r := ofList(t, disk)
	s, pt := r.pt.store, r.pt
	log, err := segment.Open(disk, "p", pt.Identity(), segment.State{}, segment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	pt.log, pt.machine, s.disk = log, new(machine.Partition), disk
	s.Add([]*Partition{pt})
	if pt.CloseAndRefuse(errs.ErrDisk, true); !isClosed(pt) {
		t.Fatal("puts come to a log that takes nothing")
	}
	if err := (&remover{r}).removeBytes(); err != nil || isClosed(pt) || pt.flush.Reopens() != 1 {
		t.Errorf("%v, closed %v, reopened %d times", err, isClosed(pt), pt.flush.Reopens())
	}
}

// A copy that was dropped, and whose topic was deleted since, is not in the list after a recovery. Otherwise a new copy
// with the same identity would count as dropped.
func TestDroppedCopyWhoseTopicIsGone(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	r := ofList(t, disk)
	for _, id := range []segment.Identity{r.pt.Identity(), {Topic: uuid.UUID{8}}} {
		if err := r.node.Shortened.SetDiscarded(id, true); err != nil {
			t.Fatal(err)
		}
	}
	r.pt.store.disk = disk
	log := NewRecovery(r.pt.store).Log
	entry := checkpoint.Entry{ID: segment.Identity{Topic: uuid.UUID{8}}, Fold: new(fold.Cursors)}
	err := errors.Join(log.Checkpoint(checkpoint.Append(checkpoint.AppendCount(nil, 1), &entry)), log.Finish())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.node.noteShortened(log, false, true); err != nil {
		t.Fatal(err)
	}
	left, err := datadir.ReadShortened(disk)
	if err != nil || left.Count() != 1 || !left.IsDiscarded(segment.Identity{Topic: uuid.UUID{8}}) ||
		left.IsDiscarded(r.pt.Identity()) {
		t.Errorf("%+v, %v", left, err)
	}
}

// A commit log that cannot be read knows no topic. A copy that was dropped stays dropped: the next process may be able
// to read the commit log, and then finds a copy whose segments have a gap.
func TestUnreadableCommitLogForgetsNoDroppedCopy(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	r := ofList(t, disk)
	if err := r.node.Shortened.SetDiscarded(r.pt.Identity(), true); err != nil {
		t.Fatal(err)
	}
	r.pt.store.disk = disk
	if err := r.node.noteShortened(NewRecovery(r.pt.store).Log, false, false); err != nil {
		t.Fatal(err)
	}
	if !r.node.Shortened.IsDiscarded(r.pt.Identity()) || !listed(t, disk, r) {
		t.Error("a copy that was dropped is forgotten")
	}
}

// A copy that begins anew is in the file of shortened copies first. That is so even if the row that this process knows
// does not count the copy in sync (that row may be from before it joined), and even if the list in memory has the copy
// but could not be written. A copy that holds nothing lacks nothing.
func TestCopyIsListedBeforeItBeginsAnew(t *testing.T) {
	for _, holds := range []segment.Position{0, 3} {
		disk := faultaio.New(faultaio.Options{})
		r := ofList(t, disk)
		r.pt.machine = machine.NewPartition(segment.State{Next: holds}, segment.Sizes{})
		r.state.ISR = []replicate.Member{{Node: 7}}
		disk.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Name: datadir.ShortenedFile + "*", Err: syscall.EIO})
		if err := r.node.Shortened.Add([]segment.Identity{r.pt.Identity()}); err == nil {
			t.Fatal("the list was written")
		}
		r.shortened = true // as after the copy was opened again: the list in memory has it
		c := &logCut{replica: r, reset: true, Past: logread.Past{State: segment.State{Next: 9}}}
		if err := c.prepare(); err != nil {
			t.Fatal(err)
		}
		kept, err := datadir.ReadShortened(disk)
		if err != nil || kept.Has(r.pt.Identity()) != (holds > 0) {
			t.Errorf("it holds %d batches, listed: %v, %v", holds, kept.Has(r.pt.Identity()), err)
		}
	}
}

// A copy must begin anew while the disk is full, so the list of shortened copies cannot be written. The copy waits
// until there is room, and needs no restart. After any other error it needs one.
func TestCopyBeginsAnewWhenTheDiskHasRoom(t *testing.T) {
	for _, c := range []struct {
		kind  faultaio.Kind
		err   error
		waits bool
	}{
		{faultaio.KindWrite, syscall.ENOSPC, true},
		{faultaio.KindWrite, syscall.EDQUOT, true},
		{faultaio.KindCreate, syscall.EMFILE, true},
		{faultaio.KindCreate, syscall.ENOMEM, true},
		{faultaio.KindWrite, syscall.EIO, false},
		{faultaio.KindWrite, syscall.ENOMEM, false}, // nobody knows what became of the write
	} {
		disk := faultaio.New(faultaio.Options{})
		r := ofList(t, disk)
		r.pt.machine = machine.NewPartition(segment.State{Next: 3}, segment.Sizes{})
		disk.Inject(faultaio.Rule{Kind: c.kind, Name: datadir.ShortenedFile + "*", Err: c.err, Count: 2})
		r.cut = &logCut{replica: r, reset: true, Past: logread.Past{State: segment.State{Next: 9}}}
		err := r.cut.awaitPrepared()
		if c.waits && (err != nil || !r.node.Shortened.IsDurable(r.pt.Identity())) || !c.waits && !errors.Is(err, c.err) {
			t.Errorf("%v: %v, listed %v", c.err, err, r.node.Shortened.IsDurable(r.pt.Identity()))
		}
	}
}
