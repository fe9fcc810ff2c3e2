package aside

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/segment/aio"
)

// Limits bound what a node keeps. They are documented in docs/operate/limits.md.
type Limits struct {
	Age   time.Duration // what is older is removed
	Bytes int64         // of the node, file system blocks and cut.json included; the oldest are removed first
	// Young is the age below which nothing is removed to make room. What a new cut takes beyond the room is not kept.
	Young time.Duration
	// PerPartition bounds the cuts of a partition; the oldest are removed first, whatever their age. A partition that is
	// cut that often is led in turns by nodes that do not hear each other, and its cuts are the ends of logs.
	PerPartition int
}

// DefaultLimits are those of every node.
var DefaultLimits = Limits{Age: 7 * 24 * time.Hour, Bytes: 1 << 30, Young: time.Hour, PerPartition: 64}

const (
	// entryBytes is what an entry takes besides its batches: a directory, and a block of cut.json.
	entryBytes = 8 << 10
	// smallBytes is the size up to which a cut takes any room of the disk that it finds. A larger one leaves as much free
	// as it takes, so that it does not fill the disk and stop publishing.
	smallBytes = 4 << 20
	// knownLeast is how long a process knows an entry before it removes it for its age. A wall clock that was wrong when
	// the process started is noticed by then.
	knownLeast = 24 * time.Hour
)

// Keeper keeps what cuts take, for one data directory. Load is called first; then any goroutine may call the other
// methods. mu guards the list, and is never held while the disk is read or written.
type Keeper struct {
	disk   aio.Disk
	log    *slog.Logger
	now    func() time.Time
	limits Limits

	mu      lock.Mutex[lock.Aside]
	list    []*kept         // the oldest first
	names   map[string]bool // of directories that are being written
	bytes   int64           // that the list takes, and what is being written
	trashed atomic.Uint64   // makes names in the trash unique
}

// kept is an entry of the list.
type kept struct {
	Entry
	at      time.Time // by its name
	known   time.Time // when this process read or made it
	settled bool      // the log has other batches where these were; no need to look again. Keeper.mu guards it
}

// takes is how many bytes of the disk the entry takes, about.
func (k *kept) takes() int64 { return takes(k.Bytes) }

// takes is how many bytes of the disk an entry with so many bytes of batches takes, about.
func takes(batches int64) int64 { return aio.RoundUp(batches, aio.BlockBytes) + entryBytes }

// New returns a keeper that knows of nothing yet. now is the engine's clock.
func New(disk aio.Disk, log *slog.Logger, now func() time.Time, limits Limits) *Keeper {
	return &Keeper{disk: disk, log: log, now: now, limits: limits, names: map[string]bool{}}
}

// Load reads what earlier processes kept, and removes what a crash left unfinished. It is called at the start, before
// any goroutine runs. If it fails, nothing is known of what is there, and the directories stay.
func (k *Keeper) Load() error {
	all, err := List(k.disk)
	if err != nil {
		return fmt.Errorf("aside: %w", err)
	}
	for i := range all {
		e := &all[i]
		if inSegments(e.Name) {
			continue
		}
		if errors.Is(e.Err, errUnfinished) {
			k.drop(e.Name)
			continue
		}
		_, at, _ := parseName(e.Name)
		entry := &kept{Entry: *e, at: at, known: k.now()}
		k.list = append(k.list, entry)
		k.bytes += entry.takes()
	}
	return nil
}

// sortEntries puts the oldest first.
func sortEntries(all []Entry) {
	age := func(e *Entry) int64 {
		_, at, _ := parseName(e.Name)
		return at.Unix()
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
		if d := age(&a) - age(&b); d != 0 {
			return int(d)
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// Stats is what a keeper keeps now.
type Stats struct {
	Cuts            int
	Messages, Bytes int64
}

// Stats returns the present numbers.
func (k *Keeper) Stats() (s Stats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.list {
		s.Cuts, s.Messages, s.Bytes = s.Cuts+1, s.Messages+e.Messages, s.Bytes+e.Bytes
	}
	return s
}

// Holds answers for the log of a partition. state says what it has at a position now.
type Holds func(id segment.Identity, pos segment.Position, crc uint32) State

// State is what a log has at a position.
type State uint8

// The states.
const (
	Unknown State = iota // nothing that is committed; that may change
	Same                 // the same batch, committed
	Other                // another batch that is committed, or the log does not reach back to it
)

// Sweep removes what is older than Limits.Age, if this process has known it for a day, and what the log has again: a
// leader sent the batches once more and they are committed, or a crash came before the record of the cut. holds may
// read the log. The flusher calls Sweep.
func (k *Keeper) Sweep(holds Holds) {
	k.mu.Lock()
	all := slices.Clone(k.list)
	k.mu.Unlock()
	for _, e := range all {
		if k.age(e) > k.limits.Age && k.now().Sub(e.known) > knownLeast {
			k.remove(e)
			continue
		}
		k.mu.Lock()
		settled := e.settled
		k.mu.Unlock()
		if e.Err != nil || settled || e.Batches == 0 {
			continue
		}
		switch holds(e.identity(), e.LastPosition, e.LastCRC) {
		case Same:
			k.log.Info("what a cut took from a copy is in the log again, and is not kept aside any longer",
				"topic", e.Topic, "partition", e.Partition, "aside", e.Name, "messages", e.Messages)
			k.remove(e)
		case Other:
			k.mu.Lock()
			e.settled = true
			k.mu.Unlock()
		}
	}
}

// MakeRoom removes the oldest entry, if it is not young. The flusher calls it while the disk is full.
func (k *Keeper) MakeRoom() {
	k.mu.Lock()
	var oldest *kept
	if len(k.list) > 0 && k.isOld(k.list[0]) {
		oldest = k.list[0]
	}
	k.mu.Unlock()
	if oldest != nil {
		k.sayRemoved(oldest, "the disk is full")
		k.remove(oldest)
	}
}

func (k *Keeper) isOld(e *kept) bool { return k.age(e) > k.limits.Young }

// age is how old an entry is. One from the future is from a time when the node's clock was wrong, and counts as old.
func (k *Keeper) age(e *kept) time.Duration { return k.now().Sub(e.at).Abs() }

func (k *Keeper) sayRemoved(e *kept, why string) {
	k.log.Warn("what a cut took from a copy is removed before its time", "why", why, "topic", e.Topic,
		"partition", e.Partition, "aside", e.Name, "messages", e.Messages)
}

// remove takes an entry out of the list and moves its directory to the trash. It does nothing if the entry is gone.
func (k *Keeper) remove(e *kept) {
	k.mu.Lock()
	i := slices.Index(k.list, e)
	if i >= 0 {
		k.list = slices.Delete(k.list, i, i+1)
		k.bytes -= e.takes()
	}
	k.mu.Unlock()
	if i >= 0 {
		k.drop(e.Name)
	}
}

// drop moves a directory to the trash. If that fails, the directory stays until the next start finds it.
func (k *Keeper) drop(name string) {
	err := k.disk.MkdirAll(datadir.Trash)
	if err == nil {
		to := path.Join(datadir.Trash, fmt.Sprintf("aside-%s-%d", name, k.trashed.Add(1)))
		err = k.disk.Rename(path.Join(Dir, name), to)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Warn("what a cut took from a copy could not be removed; the next start tries it again",
			"aside", name, "error", err)
	}
}

// Keep durably keeps the batches of src in [from, until). about describes the cut, and Keep returns it with what it has
// kept. If that is no message, the entry has no name, and there is no directory.
//
// The caller writes the record of the cut only after Keep has returned nil. After an error nothing is kept; if it is
// one of a full disk or of too few descriptors, Keep may be called again.
func (k *Keeper) Keep(src Source, about Cut, from, until segment.Offset) (Entry, error) {
	about.Format, about.Time = Format, k.now().UTC()
	for {
		r := k.reserve(about.identity(), int64(until-from))
		e := &kept{Entry: Entry{Name: r.name, Cut: about}, at: time.Unix(r.unix, 0)}
		again, err := k.write(src, e, from, until, r.size)
		if errors.Is(err, errTaken) {
			k.giveBack(r, true)
			continue
		}
		if err != nil || e.Messages == 0 {
			_ = k.disk.RemoveAll(path.Join(Dir, r.name)) // if it stays, the next start removes it: it has no cut.json
			k.giveBack(r, false)
			e.Name = ""
			return e.Entry, err
		}
		k.add(e, r)
		for _, old := range r.gone {
			k.sayRemoved(old, "the node keeps as much as it may")
			k.drop(old.Name)
		}
		for _, old := range again {
			k.remove(old)
		}
		k.boundPartition(e)
		return e.Entry, nil
	}
}

// errTaken says that the directory of a new entry exists already: Load did not see it.
var errTaken = errors.New("aside: the directory exists")

// reservation is the name and the room of an entry that is being written.
type reservation struct {
	name string
	unix int64
	size int64   // bytes of batches that it has room for
	gone []*kept // the entries that make room: they are not in the list any more, and their directories are still there
}

// reserve chooses the name of a directory, and takes room for up to want bytes of batches.
func (k *Keeper) reserve(id segment.Identity, want int64) *reservation {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := &reservation{size: want}
	for r.unix = k.now().Unix(); ; r.unix++ {
		r.name = nameOf(id, r.unix)
		if !k.names[r.name] && !slices.ContainsFunc(k.list, func(e *kept) bool { return e.Name == r.name }) {
			break
		}
	}
	k.names[r.name] = true
	for k.bytes+takes(r.size) > k.limits.Bytes && len(k.list) > 0 && k.isOld(k.list[0]) {
		r.gone = append(r.gone, k.list[0])
		k.bytes -= k.list[0].takes()
		k.list = slices.Delete(k.list, 0, 1)
	}
	if room := k.limits.Bytes - k.bytes; room < takes(r.size) {
		r.size = max(0, room-entryBytes) &^ (aio.BlockBytes - 1)
	}
	k.bytes += takes(r.size)
	return r
}

// giveBack undoes reserve. With taken, the name is not used again.
func (k *Keeper) giveBack(r *reservation, taken bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !taken {
		delete(k.names, r.name)
	}
	k.bytes -= takes(r.size)
	for _, e := range r.gone {
		k.bytes += e.takes()
	}
	k.list = append(r.gone, k.list...)
}

// add puts an entry that is durable into the list, in place of its reservation.
func (k *Keeper) add(e *kept, r *reservation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.names, e.Name)
	k.bytes += e.takes() - takes(r.size)
	k.list = append(k.list, e)
	slices.SortStableFunc(k.list, func(a, b *kept) int { return a.at.Compare(b.at) })
}

// boundPartition removes the oldest entries of the partition of e, which is new, if there are too many.
func (k *Keeper) boundPartition(e *kept) {
	k.mu.Lock()
	var others []*kept
	for _, old := range k.list {
		if old != e && old.Err == nil && old.identity() == e.identity() {
			others = append(others, old)
		}
	}
	k.mu.Unlock()
	for _, old := range others[:max(0, len(others)+1-k.limits.PerPartition)] {
		k.sayRemoved(old, "the partition was cut too often")
		k.remove(old)
	}
}

// write writes the directory of e, and fills in e.Cut. It returns in again the older entries of the partition that are
// not needed any more. Such an entry ends with a batch that the log still had: its cut did not take place, or its
// batches came back. So each batch of it is now in e, if this cut takes it, or else in the log.
func (k *Keeper) write(src Source, e *kept, from, until segment.Offset, size int64) (again []*kept, err error) {
	skip := max(from, until-segment.Offset(size))
	if skip == until {
		e.NoRoomBytes, e.KeptFrom = int64(until-from), e.Until
		return nil, nil
	}
	if err := k.checkRoom(size); err != nil {
		return nil, err
	}
	where := path.Join(Dir, e.Name)
	if err := k.disk.MkdirAll(where); err != nil {
		return nil, err
	}
	block := int64(max(k.disk.Info().BlockBytes, aio.BlockBytes))
	file, err := k.disk.Create(path.Join(where, BatchesFile), aio.RoundUp(size, block))
	if errors.Is(err, fs.ErrExist) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	buf, free := aio.AlignedBytes(int(aio.RoundUp(min(size, copyBytes), block)))
	defer free()
	ends := k.ends(e.identity())
	c := copier{
		src: src, cut: &e.Cut, skip: skip, until: until, next: e.From, nextID: e.FromID,
		out: aio.Stage{File: file, Buf: buf}, block: block,
		seen: func(h *segment.Header) {
			again = append(again, ends[link{h.Position, h.CRC}]...)
		},
	}
	err = errors.Join(c.run(from), file.Close())
	if err != nil || e.Messages == 0 {
		return nil, err
	}
	data, err := datadir.SealFile(&e.Cut)
	if err == nil {
		err = k.disk.WriteFile(path.Join(where, CutFile), data) // syncs the directory, and so the name of the other file
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(again, func(old *kept) bool {
		return len(e.Holes) > 0 || e.KeptFrom > e.From && old.KeptFrom < e.KeptFrom // old may have batches that e lacks
	}), nil
}

// link names a batch: its checksum covers that of the batch before, and so all that came before.
type link struct {
	pos segment.Position
	crc uint32
}

// ends returns the entries of a partition by their last batches.
func (k *Keeper) ends(id segment.Identity) map[link][]*kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[link][]*kept{}
	for _, e := range k.list {
		if e.Err == nil && e.Batches > 0 && e.identity() == id {
			last := link{e.LastPosition, e.LastCRC}
			out[last] = append(out[last], e)
		}
	}
	return out
}

// checkRoom refuses a large cut that would take most of the free space of the disk.
func (k *Keeper) checkRoom(size int64) error {
	if size <= smallBytes {
		return nil
	}
	free, err := k.disk.FreeBytes()
	if err == nil && free < 2*size {
		k.MakeRoom()
		err = fmt.Errorf("aside: a cut takes %d bytes, and %d are free: %w", size, free, syscall.ENOSPC)
	}
	return err
}
