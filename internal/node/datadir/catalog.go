package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"syscall"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/names"
	"penstock/segment/aio"
)

// These are the paths in a data directory. A topic's identity is its UUID, not its name: a topic that was deleted and
// created again under the same name finds no bytes of the old topic.
//
//	node.json                     identity: node, store, format
//	clog/, spare/, log.mark       the commit log, and how far it went at least
//	topics/<uuid>/topic.json      name and settings
//	*.copy.json                   second copies of node.json and topic.json
//	topics/<uuid>/<partition>/    segments
//	trash/                        deleted topics and segments, until their bytes are removed
//	aside/                        what cuts took from copies, see internal/node/aside
//	audit/                        changes and refusals: the server of clients writes it, see internal/server/audit
//	history/                      the points of the console's plots, likewise: see internal/server/history
//	held/                         second names of segments that a backup is still copying
const (
	TopicFormat = 2 // of topic.json; the format of node.json encodes the directory's feature level, see level.go
	NodePath    = "node.json"
	topicsDir   = "topics"
	Trash       = "trash"
	Held        = "held"
	TopicFile   = "topic.json"

	MaxFileBytes = 1 << 20
	// MaxPartitions bounds the partitions of a topic: an ID has 16 bits for the partition.
	MaxPartitions = 1 << 16
)

// Topic is the content of a topic.json.
type Topic struct {
	Format     int       `json:"format"`
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
	CreatedNs  int64     `json:"created_ns"`
	// MadeBy is the token for which the topic counts (node.TopicOptions). Versions that do not know it write none.
	MadeBy string `json:"made_by,omitzero"`

	Settings meta.TopicSettings `json:"settings,omitzero"`
}

// ListTopics reads the metadata of all topics. If the metadata in a directory cannot be read, ListTopics calls odd and
// leaves the directory as it is: missing metadata never deletes data. each(n, do) must call do with 0 to n-1, and may
// make several calls at a time.
func ListTopics(
	disk aio.Disk, log *slog.Logger, each func(n int, do func(i int)), odd func(dir string, err error),
) ([]Topic, error) {
	if err := disk.MkdirAll(topicsDir); err != nil {
		return nil, err
	}
	dirs, err := disk.ReadDir(topicsDir)
	if err != nil {
		return nil, err
	}
	all, errs := make([]Topic, len(dirs)), make([]error, len(dirs))
	each(len(dirs), func(i int) {
		name := dirs[i].Name()
		_, errs[i] = ReadTwice(disk, log, path.Join(topicsDir, name, TopicFile), func(data []byte) error {
			all[i] = Topic{}
			return UnsealFile(data, &all[i], func() error { return all[i].Check(name) })
		})
	})
	out := all[:0]
	for i, err := range errs {
		if err != nil {
			odd(dirs[i].Name(), err)
			continue
		}
		out = append(out, all[i])
	}
	return out, nil
}

// Check returns an error unless topic.json can belong to the directory dir.
func (m *Topic) Check(dir string) error {
	switch {
	case m.Format > TopicFormat:
		return fmt.Errorf("format %d of %s: %w", m.Format, TopicFile, meta.ErrNewerLevel)
	case m.ID.String() != dir || !names.ValidTopic(m.Name) || m.Partitions < 1 || m.Partitions > MaxPartitions:
		return fmt.Errorf("%s does not describe this directory", TopicFile)
	}
	return nil
}

// Write durably writes a topic's directory and its topic.json.
func (m *Topic) Write(disk aio.Disk) error {
	dir := TopicPath(m.ID)
	if err := disk.MkdirAll(dir); err != nil {
		return err
	}
	return WriteTwice(disk, path.Join(dir, TopicFile), m)
}

// TrashTopic durably moves a topic's directory to the trash. The flusher removes its bytes later. Where the trash has
// no room for a name, or the topic is on a file system of its own, the bytes are removed at once.
func TrashTopic(disk aio.Disk, id uuid.UUID) error {
	err := disk.MkdirAll(Trash)
	if err == nil {
		err = disk.Rename(TopicPath(id), path.Join(Trash, id.String()))
	}
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
	case aio.NoRoom(err), errors.Is(err, syscall.EXDEV):
		if err := disk.RemoveAll(TopicPath(id)); err != nil {
			return err
		}
		return disk.SyncDir(topicsDir)
	default:
		return err
	}
	if err := disk.SyncDir(topicsDir); err != nil {
		return err
	}
	return disk.SyncDir(Trash)
}

// HasPartitions says whether a topic's directory has, or may have, a folder of a partition.
func HasPartitions(disk aio.Disk, id uuid.UUID) bool {
	entries, err := disk.ReadDir(TopicPath(id))
	return err != nil || slices.ContainsFunc(entries, func(e fs.FileInfo) bool { return e.IsDir() })
}

func TopicPath(id uuid.UUID) string { return path.Join(topicsDir, id.String()) }

func PartitionPath(id uuid.UUID, number uint32) string {
	return path.Join(TopicPath(id), fmt.Sprint(number))
}
