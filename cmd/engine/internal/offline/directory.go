// Package offline reads a data directory without changing it, for the tools beside it.
//
// It has its own readers of the segment header, the index and the checkpoint, written from the FORMAT.md files:
// a checker that shared the engine's would share its mistakes. Batches are decoded by package segment.
package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/segment/aio"
)

// Exit codes of the tools.
const (
	Clean       = 0
	Corrupt     = 1
	CannotCheck = 2
)

// Format is the newest format of a data directory that the tools know.
const Format = 6

// markFormat is the first format in which every data directory has a log.mark.
const markFormat = 5

// lockWait lets the last writes of a killed node land; it holds the lock until then.
const lockWait = time.Second

// maxMetaBytes bounds node.json and topic.json.
const maxMetaBytes = 1 << 20

// Node is node.json.
type Node struct {
	Format  int       `json:"format"`
	NodeID  string    `json:"node_id"`
	StoreID uuid.UUID `json:"store_id"`
}

// Topic is topic.json.
type Topic struct {
	Format     int       `json:"format"`
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
}

// Dir is a data directory that is open for reading.
type Dir struct {
	Disk aio.Disk
	Node Node
}

// Open takes the directory's lock for reading, which fails while a node runs on it. With live it takes no lock:
// what is read may be changing.
func Open(dir string, live bool) (*Dir, error) {
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: live, LockWait: lockWait})
	if errors.Is(err, aio.ErrLocked) {
		return nil, fmt.Errorf("a node is running on %s: stop it first", dir)
	}
	if err != nil {
		return nil, err
	}
	d := &Dir{Disk: disk}
	if err := d.readNode(); err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return d, nil
}

// MarkRequired says whether the directory cannot be without a log.mark.
func (d *Dir) MarkRequired() bool { return d.Node.Format >= markFormat }

// Close releases the lock.
func (d *Dir) Close() error { return d.Disk.Close() }

func (d *Dir) readNode() error {
	data, err := d.Disk.ReadFile("node.json", maxMetaBytes)
	if err != nil {
		return fmt.Errorf("this is not a data directory: %w", err)
	}
	if err := json.Unmarshal(data, &d.Node); err != nil {
		return fmt.Errorf("node.json does not decode: %w", err)
	}
	if d.Node.Format > Format {
		return fmt.Errorf(
			"the data directory has format %d and this tool knows %d: use the tool of the version that wrote it",
			d.Node.Format, Format)
	}
	return nil
}

// Topics reads every topic's metadata, in order of name. Directories without are in odd.
func (d *Dir) Topics() (topics []Topic, odd []error, err error) {
	dirs, err := d.list("topics")
	if err != nil {
		return nil, nil, err
	}
	for _, name := range dirs {
		file := path.Join("topics", name, "topic.json")
		var t Topic
		data, err := d.Disk.ReadFile(file, maxMetaBytes)
		if err == nil {
			err = json.Unmarshal(data, &t)
		}
		if err == nil && (t.ID.String() != name || t.Name == "" || t.Partitions < 1) {
			err = errors.New("it does not describe its directory")
		}
		if err != nil {
			odd = append(odd, fmt.Errorf("%s: %w", file, err))
			continue
		}
		topics = append(topics, t)
	}
	sort.Slice(topics, func(i, j int) bool { return topics[i].Name < topics[j].Name })
	return topics, odd, nil
}

// list returns the names in a folder; a folder that does not exist is empty.
func (d *Dir) list(name string) ([]string, error) {
	infos, err := d.Disk.ReadDir(name)
	if errors.Is(err, ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(infos))
	for _, i := range infos {
		names = append(names, i.Name())
	}
	return names, nil
}

// PartitionDir is the folder of a partition's segments.
func PartitionDir(id segment.Identity) string {
	return path.Join("topics", id.Topic.String(), strconv.FormatUint(uint64(id.Partition), 10))
}

// Segments lists the numbers of a partition's segment files, rising.
func (d *Dir) Segments(id segment.Identity) ([]uint32, error) {
	names, err := d.list(PartitionDir(id))
	if err != nil {
		return nil, err
	}
	var numbers []uint32
	for _, n := range names {
		digits, ok := strings.CutSuffix(n, ".seg")
		if !ok {
			continue
		}
		v, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || SegmentName(uint32(v)) != n {
			continue
		}
		numbers = append(numbers, uint32(v))
	}
	sort.Slice(numbers, func(i, j int) bool { return numbers[i] < numbers[j] })
	return numbers, nil
}

// Below lists what the folder of a partition has beside its segments: the lowest number of an index, or -1, and the
// numbers of the notes of where the log begins, rising.
func (d *Dir) Below(id segment.Identity) (index int64, notes []uint32, err error) {
	names, err := d.list(PartitionDir(id))
	index = -1
	for _, n := range names {
		if number, ok := segment.ParseNoteName(n); ok {
			notes = append(notes, number)
		}
		digits, ok := strings.CutSuffix(n, ".idx")
		if v, perr := strconv.ParseUint(digits, 10, 32); ok && perr == nil && (index < 0 || int64(v) < index) {
			index = int64(v)
		}
	}
	slices.Sort(notes)
	return index, notes, err
}

// HasIndex says whether the index of segment n is there.
func (d *Dir) HasIndex(id segment.Identity, n uint32) (bool, error) {
	names, err := d.list(PartitionDir(id))
	return slices.Contains(names, fmt.Sprintf("%010d.idx", n)), err
}

// SegmentName is the file name of segment n.
func SegmentName(n uint32) string { return fmt.Sprintf("%010d.seg", n) }

// IndexName is the name of its index.
func IndexName(n uint32) string { return fmt.Sprintf("%010d.idx", n) }
