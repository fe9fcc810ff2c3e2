package backup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/clog"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/segment/aio"
)

// Missing is a range of a partition that does not read back. The JSON names are stable.
type Missing struct {
	Topic     string         `json:"topic"` // its name, or its UUID if that is not known
	TopicID   uuid.UUID      `json:"topic_id"`
	Partition uint32         `json:"partition"`
	File      string         `json:"file"`
	From      segment.Offset `json:"from"`
	To        segment.Offset `json:"to"`
	FirstID   string         `json:"first_id"` // of the first message, 16 hex digits
	Messages  uint64         `json:"messages"` // at most: where nothing says how many there were, too many are counted
	Why       string         `json:"why"`
}

func (m *Missing) String() string {
	return fmt.Sprintf("topic %s, partition %d: %d messages from %s on", m.Topic, m.Partition, m.Messages, m.FirstID)
}

// Identity says which partition it is.
func (m *Missing) Identity() segment.Identity {
	return segment.Identity{Topic: m.TopicID, Partition: m.Partition}
}

// Files are the segment files of a partition, as a backup copies them.
type Files struct {
	ID segment.Identity
	// End and NextID say where the segments end.
	End    segment.Offset
	NextID segment.MsgID
	pieces []piece // by number, without a gap: files that are missing have one that stands in for them
}

// piece is a segment file.
type piece struct {
	name  string
	start segment.FileStart
	bad   error // its header does not verify, or it is missing: start has only the number
	v     *segment.FileVerifier
}

var errNoFile = errors.New("the file is missing")

// Add adds a file. The caller adds them in the order of their numbers. bad says that it cannot be read.
func (f *Files) Add(start segment.FileStart, bad error) {
	if n := len(f.pieces); n > 0 && f.pieces[n-1].start.Number+1 < start.Number {
		f.gap(f.pieces[n-1].start.Number + 1)
	}
	if bad == nil && start.Starts {
		f.pieces = f.pieces[:0]
	}
	f.pieces = append(f.pieces, piece{name: f.name(start.Number), start: start, bad: bad})
}

// Lack notes that the newest files are missing.
func (f *Files) Lack() {
	number := uint32(0)
	if n := len(f.pieces); n > 0 {
		number = f.pieces[n-1].start.Number + 1
	}
	f.gap(number)
}

func (f *Files) gap(number uint32) {
	f.pieces = append(f.pieces, piece{name: f.name(number), start: segment.FileStart{Number: number}, bad: errNoFile})
}

func (f *Files) name(number uint32) string {
	return path.Join(datadir.PartitionPath(f.ID.Topic, f.ID.Partition), segment.FileName(number))
}

// verifiers adds a verifier for each file to all, by its name.
func (f *Files) verifiers(all map[string]*segment.FileVerifier) {
	for i := range f.pieces {
		p := &f.pieces[i]
		if p.bad != nil {
			continue
		}
		e := segment.Extent{
			ID: f.ID, Number: p.start.Number, First: p.start.First, FirstID: p.start.FirstID, End: f.End, NextID: f.NextID,
		}
		if i+1 < len(f.pieces) {
			next := &f.pieces[i+1]
			if e.Open = next.bad != nil; e.Open {
				e.End = min(e.End, p.start.Base+segment.Offset(p.start.CapacityBytes))
			} else {
				e.End, e.NextID = next.start.Base, next.start.FirstID
			}
		}
		p.v = segment.NewFileVerifier(e)
		all[p.name] = p.v
	}
}

// missing lists what does not verify, when the files have passed their verifiers.
func (f *Files) missing() (all []Missing) {
	var at segment.Offset // behind the file before
	var id segment.MsgID
	add := func(p *piece, l segment.Lost) {
		all = append(all, Missing{
			Topic: f.ID.Topic.String(), TopicID: f.ID.Topic, Partition: f.ID.Partition, File: p.name, From: l.From, To: l.To,
			FirstID: batch.MakeID(f.ID.Partition, l.FirstID).String(), Messages: uint64(max(l.NextID, l.FirstID) - l.FirstID),
			Why: l.Err.Error(),
		})
	}
	for i := range f.pieces {
		p := &f.pieces[i]
		if p.bad == nil {
			for _, l := range p.v.Lost() {
				add(p, l)
			}
			at, id = p.v.Behind()
			continue
		}
		if i > 0 && f.pieces[i-1].bad != nil {
			continue // the one before stands for both
		}
		to, next := f.End, f.NextID
		if k := slices.IndexFunc(f.pieces[i:], func(p piece) bool { return p.bad == nil }); k > 0 {
			to, next = f.pieces[i+k].start.First, f.pieces[i+k].start.FirstID
		}
		if at < to {
			add(p, segment.Lost{Range: segment.Range{From: at, To: to}, FirstID: id, NextID: next, Err: p.bad})
		}
	}
	return all
}

// survey verifies the segments of partitions while they are copied.
type survey struct {
	parts     []*Files
	verifiers map[string]*segment.FileVerifier
}

func newSurvey() *survey { return &survey{verifiers: map[string]*segment.FileVerifier{}} }

func (s *survey) add(f *Files) {
	f.verifiers(s.verifiers)
	s.parts = append(s.parts, f)
}

// missing lists what did not verify, with the names of topics.
func (s *survey) missing(name func(uuid.UUID) string) (all []Missing) {
	for _, f := range s.parts {
		all = append(all, f.missing()...)
	}
	for i := range all {
		all[i].Topic = cmp.Or(name(all[i].TopicID), all[i].Topic)
	}
	slices.SortFunc(all, func(a, b Missing) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.From, b.From))
	})
	return all
}

// addStored adds the partitions of which the commit log says that segments hold something. names are the names of all
// files. start reads the header of one of them.
func (s *survey) addStored(
	ends map[segment.Identity]segment.State, names []string,
	start func(string, segment.Identity, uint32) (segment.FileStart, error),
) {
	numbers, topics := map[segment.Identity][]uint32{}, map[uuid.UUID]bool{}
	for _, name := range names {
		topic, rest, ok := topicOf(name)
		if topics[topic] = true; !ok || path.Ext(rest) != ".seg" {
			continue
		}
		part, file, _ := strings.Cut(rest, "/")
		p, err := strconv.ParseUint(part, 10, 32)
		n, err2 := strconv.ParseUint(strings.TrimSuffix(file, ".seg"), 10, 32)
		if id := (segment.Identity{Topic: topic, Partition: uint32(p)}); err == nil && err2 == nil {
			numbers[id] = append(numbers[id], uint32(n))
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(ends), segment.Identity.Compare) {
		if st := ends[id]; st.End > 0 && topics[id.Topic] { // a topic without a file was deleted
			slices.Sort(numbers[id])
			s.add(storedFiles(id, st, numbers[id], start))
		}
	}
}

// storedFiles returns the files of a partition that must hold everything below st.
func storedFiles(
	id segment.Identity, st segment.State, numbers []uint32,
	start func(string, segment.Identity, uint32) (segment.FileStart, error),
) *Files {
	f := &Files{ID: id, End: st.End, NextID: st.NextID}
	at := func(n uint32) (segment.FileStart, error) { return start(f.name(n), id, n) }
	if segment.TrimmedToEnd(st, numbers, false, func(n uint32) (segment.Offset, bool) {
		h, err := at(n)
		return h.Base, err == nil
	}) {
		return f
	}
	last := int64(st.Segment)
	if st.SegmentCapacity == 0 || st.SegmentBase == st.End {
		last-- // the newest one is placed but not begun
	}
	numbers = slices.DeleteFunc(numbers, func(n uint32) bool { return int64(n) > last })
	for _, n := range numbers {
		h, err := at(n)
		if err == nil && h.First > st.End {
			err = fmt.Errorf("it begins at offset %d, and the log ends at %d", h.First, st.End)
		}
		h.Number = n
		f.Add(h, err)
	}
	if k := len(numbers); last == int64(st.Segment) && (k == 0 || int64(numbers[k-1]) < last) {
		f.Lack()
	}
	return f
}

// logEnds is a Replayer that keeps up to where the segments of each partition hold its log.
type logEnds struct {
	text  []byte
	parts map[segment.Identity]segment.State
}

func (l *logEnds) Restart() { *l = logEnds{} }

func (l *logEnds) Checkpoint(chunk []byte) error {
	l.text = append(l.text, chunk...)
	return nil
}

// finish decodes the checkpoint when all of it is there. Partitions that the checkpoint does not name are not verified.
func (l *logEnds) finish() {
	if l.parts != nil {
		return
	}
	l.parts = map[segment.Identity]segment.State{}
	_ = checkpoint.Decode(l.text, func(en *checkpoint.Entry) { l.parts[en.ID] = en.State })
	l.text = nil
}

// Record implements clog.Replayer. A cut takes from what segments must hold.
func (l *logEnds) Record(rec *clog.Record) error {
	l.finish()
	if rec.Type != clog.Truncate {
		return nil
	}
	en, reset, err := checkpoint.DecodeCut(rec.Payload)
	switch before, ok := l.parts[en.ID]; {
	case err != nil || !ok:
	case reset:
		delete(l.parts, en.ID)
	case en.State.End < before.End:
		l.parts[en.ID] = en.State
	}
	return nil
}

// segmentEnds reads from the commit log on the disk up to where segments hold each partition. report and err are those
// of clog.Read.
func segmentEnds(disk aio.Disk, o clog.Options) (
	ends map[segment.Identity]segment.State, report *clog.Report, err error,
) {
	arena, err := datadir.OfflineArena()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = arena.Close() }()
	l := new(logEnds)
	report, err = clog.Read(disk, arena, o, l)
	l.finish()
	return l.parts, report, err
}

// topicNames returns a function that finds the names of topics in the topic.json below root; "": it does not read.
func topicNames(root string) func(uuid.UUID) string {
	return func(id uuid.UUID) string {
		for _, name := range []string{datadir.TopicFile, datadir.CopyOf(datadir.TopicFile)} {
			m := new(datadir.Topic)
			data, err := readLimited(filepath.Join(root, datadir.TopicPath(id), name), datadir.MaxFileBytes)
			if err == nil && datadir.UnsealFile(data, m, func() error { return m.Check(id.String()) }) == nil {
				return m.Name
			}
		}
		return ""
	}
}

// topicFiles returns the names of the files of topics below root.
func topicFiles(root string) (names []string, err error) {
	for _, pattern := range []string{"topics/*/*.json", "topics/*/*/*.seg"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	return names, nil
}

// startIn returns a function that reads the headers of segment files below root.
func startIn(root string) func(string, segment.Identity, uint32) (segment.FileStart, error) {
	return func(name string, id segment.Identity, number uint32) (segment.FileStart, error) {
		f, err := os.Open(filepath.Join(root, filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) {
			return segment.FileStart{}, errNoFile
		}
		if err != nil {
			return segment.FileStart{}, err
		}
		defer func() { _ = f.Close() }()
		return segment.ReadStart(f, id, number)
	}
}
