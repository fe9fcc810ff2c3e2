package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// newestFormat is the newest format of a data directory that the tools know.
const newestFormat = 7

// markFormat is the first format in which every data directory has a log.mark.
const markFormat = 5

// lockWait lets the last writes of a killed node land; it holds the lock until then.
const lockWait = time.Second

// maxMetaBytes bounds node.json and topic.json.
const maxMetaBytes = 1 << 20

// nodeFile is node.json.
type nodeFile struct {
	Format  int       `json:"format"`
	NodeID  string    `json:"node_id"`
	StoreID uuid.UUID `json:"store_id"`
}

// topicFile is topic.json.
type topicFile struct {
	Format     int       `json:"format"`
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
}

// directory is a data directory that is open for reading.
type directory struct {
	Disk aio.Disk
	Node nodeFile
}

// openDirectory takes the directory's lock for reading, which fails while a node runs on it. With live it takes no
// lock: what is read may be changing.
func openDirectory(dir string, live bool) (*directory, error) {
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: live, LockWait: lockWait})
	if errors.Is(err, aio.ErrLocked) {
		return nil, fmt.Errorf("a node is running on %s: stop it first", dir)
	}
	if err != nil {
		return nil, err
	}
	d := &directory{Disk: disk}
	if err := d.readNode(); err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return d, nil
}

// MarkRequired says whether the directory cannot be without a log.mark.
func (d *directory) MarkRequired() bool { return d.Node.Format >= markFormat }

// Close releases the lock.
func (d *directory) Close() error { return d.Disk.Close() }

func (d *directory) readNode() error {
	data, err := d.Disk.ReadFile("node.json", maxMetaBytes)
	if err != nil {
		return fmt.Errorf("this is not a data directory: %w", err)
	}
	if err := json.Unmarshal(data, &d.Node); err != nil {
		return fmt.Errorf("node.json does not decode: %w", err)
	}
	if d.Node.Format > newestFormat {
		return fmt.Errorf(
			"the data directory has format %d and this tool knows %d: use the tool of the version that wrote it",
			d.Node.Format, newestFormat)
	}
	return nil
}

// Topics reads every topic's metadata, in order of name. Directories without are in odd.
func (d *directory) Topics() (topics []topicFile, odd []error, err error) {
	dirs, err := d.list("topics")
	if err != nil {
		return nil, nil, err
	}
	for _, name := range dirs {
		file := path.Join("topics", name, "topic.json")
		var t topicFile
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
func (d *directory) list(name string) ([]string, error) {
	infos, err := d.Disk.ReadDir(name)
	if errors.Is(err, fs.ErrNotExist) {
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

// partitionDir is the folder of a partition's segments.
func partitionDir(id segment.Identity) string {
	return path.Join("topics", id.Topic.String(), strconv.FormatUint(uint64(id.Partition), 10))
}

// Segments lists the numbers of a partition's segment files, rising.
func (d *directory) Segments(id segment.Identity) ([]uint32, error) {
	names, err := d.list(partitionDir(id))
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
		if err != nil || segmentName(uint32(v)) != n {
			continue
		}
		numbers = append(numbers, uint32(v))
	}
	sort.Slice(numbers, func(i, j int) bool { return numbers[i] < numbers[j] })
	return numbers, nil
}

// Below lists what the folder of a partition has beside its segments: the lowest number of an index, or -1, and the
// numbers of the notes of where the log begins, rising.
func (d *directory) Below(id segment.Identity) (index int64, notes []uint32, err error) {
	names, err := d.list(partitionDir(id))
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
func (d *directory) HasIndex(id segment.Identity, n uint32) (bool, error) {
	names, err := d.list(partitionDir(id))
	return slices.Contains(names, indexName(n)), err
}

// segmentName is the file name of segment n.
func segmentName(n uint32) string { return fmt.Sprintf("%010d.seg", n) }

// indexName is the name of its index.
func indexName(n uint32) string { return fmt.Sprintf("%010d.idx", n) }
