package aside

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/segment/aio"
)

// Names in a data directory.
const (
	Dir         = "aside"
	CutFile     = "cut.json"
	BatchesFile = "batches"
)

// Format is the newest format of cut.json.
const Format = 1

// maxCutFileBytes bounds cut.json. Its largest part are the epochs, of which a partition's table has 1,024.
const maxCutFileBytes = 1 << 20

// The reasons of a cut.
const (
	// ReasonCut says that the end of the log was cut to what the leader has.
	ReasonCut = "cut"
	// ReasonAnew says that the copy gave up its whole log and began anew from its leader. What the leader had, and its
	// retention removed, is not kept.
	ReasonAnew = "anew"
	// ReasonForgot says that the commit log had forgotten the batches when the node started, and segments had them. They
	// stay in segment files: see SetAside.
	ReasonForgot = "forgot"
)

// Cut is cut.json: what a cut took, and what of it the directory has. Positions and ids are those of the partition.
// With it two copies that acknowledged different things can be compared: which of them held what, and when that was
// stored.
type Cut struct {
	Format    int       `json:"format"`
	Node      string    `json:"node"` // whose copy was cut
	TopicID   uuid.UUID `json:"topic_id"`
	Topic     string    `json:"topic"`
	Partition uint32    `json:"partition"`
	Time      time.Time `json:"time"`   // of the cut, by the node's clock
	Reason    string    `json:"reason"` // ReasonCut, ReasonAnew or ReasonForgot
	// Leader and LeaderEpoch say to whose log the copy was cut, as far as the node knew. 0 with ReasonForgot.
	Leader      uint32        `json:"leader"`
	LeaderEpoch segment.Epoch `json:"leader_epoch"`
	// Committed is the position below which the copy knew everything to be committed.
	Committed segment.Position `json:"committed_position"`

	From   segment.Position `json:"from_position"`  // of the first batch that was cut
	Until  segment.Position `json:"until_position"` // behind the last batch that was cut
	FromID segment.MsgID    `json:"from_id"`        // of the first message that was cut
	NextID segment.MsgID    `json:"next_id"`        // behind the last message that was cut
	Epochs []EpochStart     `json:"epochs"`         // of the batches that are kept

	Batches   int64     `json:"batches"`  // that are kept, control batches included
	Messages  int64     `json:"messages"` // that are kept
	Bytes     int64     `json:"bytes"`    // of the batches that are kept
	FirstTime time.Time `json:"first_time"`
	LastTime  time.Time `json:"last_time"` // when the leader stored the first and the last message that are kept

	// KeptFrom is the position of the first batch that is kept. It is above From if there was no room for all, or the
	// first batches could not be read.
	KeptFrom segment.Position `json:"kept_from_position"`
	// NoRoomBytes are the bytes in front of KeptFrom that are not kept, because the node keeps too much already.
	NoRoomBytes int64  `json:"no_room_bytes,omitempty"`
	Holes       []Hole `json:"holes,omitempty"` // what could not be read

	// The last batch that is kept. It tells whether the log has the batches again: see Keeper.Sweep.
	LastPosition segment.Position `json:"last_position"`
	LastCRC      uint32           `json:"last_crc"`
}

// EpochStart is the first position that is kept of an epoch.
type EpochStart struct {
	Epoch    segment.Epoch    `json:"epoch"`
	Position segment.Position `json:"position"`
}

// Hole is a run of batches that could not be read when they were cut.
type Hole struct {
	From     segment.Position `json:"from_position"`
	Until    segment.Position `json:"until_position"`
	Messages int64            `json:"messages"`
	Why      string           `json:"why"`
}

// Lost is the number of messages that were cut and are not kept.
func (c *Cut) Lost() int64 { return int64(c.NextID-c.FromID) - c.Messages }

// identity is the partition of the cut.
func (c *Cut) identity() segment.Identity {
	return segment.Identity{Topic: c.TopicID, Partition: c.Partition}
}

// check returns an error unless the cut can be that of the directory name.
func (c *Cut) check(name string) error {
	id, _, ok := parseName(name)
	switch {
	case c.Format > Format:
		return fmt.Errorf("format %d of %s: this version knows %d", c.Format, CutFile, Format)
	case !ok || id != c.identity() || c.Bytes < 0 || c.Until < c.From || c.NextID < c.FromID:
		return fmt.Errorf("%s does not describe this directory", CutFile)
	}
	return nil
}

// nameOf returns the name of a directory below Dir.
func nameOf(id segment.Identity, unix int64) string {
	return fmt.Sprintf("%s-%d-%d", id.Topic, id.Partition, unix)
}

// inSegments says whether SetAside made the directory.
func inSegments(name string) bool { return strings.HasPrefix(name, segmentsPrefix) }

// parseName reads the name of a directory below Dir.
func parseName(name string) (id segment.Identity, at time.Time, ok bool) {
	const uuidLen = 36
	name = strings.TrimPrefix(name, segmentsPrefix)
	if len(name) < uuidLen+4 || name[uuidLen] != '-' {
		return id, at, false
	}
	topic, err := uuid.Parse(name[:uuidLen])
	partition, unix, found := strings.Cut(name[uuidLen+1:], "-")
	p, err2 := strconv.ParseUint(partition, 10, 32)
	s, err3 := strconv.ParseInt(unix, 10, 64)
	if err != nil || !found || err2 != nil || err3 != nil {
		return id, at, false
	}
	id = segment.Identity{Topic: topic, Partition: uint32(p)}
	return id, time.Unix(s, 0), nameOf(id, s) == name
}

// Entry is a directory below Dir.
type Entry struct {
	Name string
	Cut
	Err error // why the Cut cannot be read; then only Name is set
}

// errUnfinished says that a directory has no cut.json: the cut did not take place.
var errUnfinished = errors.New("it has no " + CutFile + ": a crash came while it was written, and the log has it all")

// errOnlySegments says that a directory of SetAside has no cut.json: an earlier version made it, or a crash came while
// it was being removed.
var errOnlySegments = errors.New("it has no " + CutFile + ": of its segments nothing is known but their files")

// List reads what is kept, the oldest first. It passes over directories that have other names. It changes nothing, and
// may be called while a node runs on the directory.
func List(disk aio.Disk) ([]Entry, error) {
	infos, err := disk.ReadDir(Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make([]Entry, 0, len(infos))
	for _, info := range infos {
		if _, _, ok := parseName(info.Name()); ok {
			out = append(out, readEntry(disk, info.Name()))
		}
	}
	sortEntries(out)
	return out, nil
}

// Find reads the entry with that name.
func Find(disk aio.Disk, name string) (Entry, error) {
	if _, _, ok := parseName(name); !ok {
		return Entry{}, fmt.Errorf("aside: %q is not the name of a directory below %s", name, Dir)
	}
	e := readEntry(disk, name)
	return e, e.Err
}

func readEntry(disk aio.Disk, name string) Entry {
	e := Entry{Name: name}
	data, err := disk.ReadFile(path.Join(Dir, name, CutFile), maxCutFileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist) && inSegments(name):
		err = errOnlySegments
	case errors.Is(err, fs.ErrNotExist):
		err = errUnfinished
	case err == nil:
		err = datadir.UnsealFile(data, &e.Cut, func() error { return e.check(name) })
	}
	if err != nil {
		return Entry{Name: name, Err: err}
	}
	return e
}

// Remove removes the entry with that name. No node runs on the directory. After a crash the entry is whole, or the next
// start removes what is left of it; segment files without their cut.json stay.
func Remove(disk aio.Disk, name string) error {
	where := path.Join(Dir, name)
	if err := disk.Remove(path.Join(where, CutFile)); err != nil {
		return err
	}
	if err := disk.SyncDir(where); err != nil {
		return err
	}
	if err := disk.RemoveAll(where); err != nil {
		return err
	}
	return disk.SyncDir(Dir)
}

// Log logs a cut that takes messages.
func (e *Entry) Log(log *slog.Logger) {
	args := []any{
		slog.String("topic", e.Topic), slog.Uint64("partition", uint64(e.Partition)),
		slog.Int64("messages", e.Messages), slog.Any("from", e.From), slog.Any("until", e.Until),
		slog.Any("committed", e.Committed), slog.Any("leader", e.Leader), slog.Any("epoch", e.LeaderEpoch),
	}
	lost := e.Lost()
	if lost > 0 {
		args = append(args, slog.Int64("messages_not_kept", lost), slog.Int64("no_room_bytes", e.NoRoomBytes),
			slog.Int("unreadable_ranges", len(e.Holes)))
	}
	if e.Name == "" {
		log.Warn("a cut takes messages from a copy that its leader does not have, and none of them could be kept",
			args...)
		return
	}
	args = append(args, slog.String("aside", e.Name))
	text := "a cut takes messages from a copy that its leader does not have. They are kept aside for 7 days, in case " +
		"they were acknowledged: penstock aside show prints them, penstock aside publish publishes them again"
	if lost > 0 {
		text = "a cut takes messages from a copy that its leader does not have. Only some could be kept aside, for 7 days: " +
			"penstock aside show prints them, penstock aside publish publishes them again"
	}
	log.Warn(text, args...)
}
