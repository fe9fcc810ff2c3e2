package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/meta"
	"penstock/segment/aio"
)

// The data directory. A topic's identity is its UUID, not its name: a topic that was deleted and created again under
// the same name finds no bytes of the old one.
//
//	node.json                     identity: node, store, format
//	clog/, spare/                 the commit log
//	topics/<uuid>/topic.json      name and settings
//	*.copy.json                   second copies of the two json files
//	topics/<uuid>/<partition>/    segments
//	trash/                        deleted topics and segments, until their bytes are removed
const (
	TopicFormat = 2 // of topic.json; that of node.json says the directory's feature level, see level.go
	NodeFile    = "node.json"
	topicsDir   = "topics"
	Trash       = "trash"
	TopicFile   = "topic.json"

	MaxFileBytes = 1 << 20
	// MaxPartitions of a topic is bounded by the 16 bits that an ID has for the partition.
	MaxPartitions = 1 << 16
)

// NoCluster is the cluster in the node.json of a single node.
var NoCluster uuid.UUID

// Node is node.json. A directory that starts empty gets a new StoreID: a node that comes back with another disk is
// another store.
type Node struct {
	Format  int       `json:"format"` // says the feature level, see level.go
	NodeID  string    `json:"node_id"`
	StoreID uuid.UUID `json:"store_id"`
	Cluster uuid.UUID `json:"cluster,omitzero"` // the cluster of which the node is a member
}

// Topic is topic.json.
type Topic struct {
	Format     int       `json:"format"`
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
	CreatedNs  int64     `json:"created_ns"`

	Settings meta.TopicSettings `json:"settings,omitzero"`
}

// OpenNode reads node.json, or makes a new store in an empty directory. The new store of a cluster member begins at the
// first level, because the cluster that it will join may be at that level.
func OpenNode(
	disk aio.Disk, log *slog.Logger, nodeID string, maxLevel int, member bool, newUUID func() uuid.UUID,
) (*Node, error) {
	m, err := readNode(disk, log, nodeID, maxLevel)
	if !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	level := maxLevel
	if member {
		level = FirstLevel
	}
	return createNode(disk, nodeID, level, newUUID)
}

// readNode reads node.json. It returns an error if this node must not use the directory: it belongs to another node, or
// its level is above maxLevel. fs.ErrNotExist: there is no file.
func readNode(disk aio.Disk, log *slog.Logger, nodeID string, maxLevel int) (*Node, error) {
	var m Node
	var odd error // the error of CheckFormat, returned without wrapping
	_, err := ReadTwice(disk, log, NodeFile, func(data []byte) error {
		m = Node{}
		return UnsealFile(data, &m, func() error { odd = m.CheckFormat(maxLevel); return odd })
	})
	if odd != nil {
		return nil, odd
	}
	if err != nil {
		return nil, fmt.Errorf("engine: cannot read %s of the data directory: %w; nothing was changed, restore it from a "+
			"backup", NodeFile, err)
	}
	if nodeID != "" && nodeID != m.NodeID {
		return nil, fmt.Errorf("engine: the data directory belongs to node %q, not to %q: nothing was changed, check the "+
			"node id and the data path", m.NodeID, nodeID)
	}
	return &m, nil
}

// Adopt binds the directory to the cluster, for ever.
func (m *Node) Adopt(disk aio.Disk, cluster uuid.UUID) error {
	switch m.Cluster {
	case cluster:
		return nil
	case uuid.Nil:
	default:
		return fmt.Errorf("engine: the data directory belongs to cluster %s, not to %s: nothing was changed, check the "+
			"addresses of the cluster and the data path", m.Cluster, cluster)
	}
	m.Cluster = cluster
	return m.write(disk)
}

func (m *Node) write(disk aio.Disk) error {
	if err := WriteTwice(disk, NodeFile, m); err != nil {
		return fmt.Errorf("engine: cannot write to the data directory: %w", err)
	}
	return nil
}

func createNode(disk aio.Disk, nodeID string, level int, newUUID func() uuid.UUID) (*Node, error) {
	for _, dir := range []string{"clog", topicsDir} {
		if files, err := disk.ReadDir(dir); err == nil && len(files) != 0 {
			return nil, fmt.Errorf("engine: the data directory has files in %s but no %s: nothing was changed, restore the "+
				"file or name an empty directory", dir, NodeFile)
		}
	}
	m := &Node{Format: FormatOf(level), NodeID: nodeID, StoreID: newUUID()}
	if m.NodeID == "" {
		m.NodeID = newUUID().String()
	}
	return m, m.write(disk)
}

// ListTopics reads the metadata of all topics. It passes a directory whose metadata cannot be read to odd, and leaves
// it as it is: missing metadata never deletes data.
func ListTopics(disk aio.Disk, log *slog.Logger, odd func(dir string, err error)) ([]Topic, error) {
	if err := disk.MkdirAll(topicsDir); err != nil {
		return nil, err
	}
	dirs, err := disk.ReadDir(topicsDir)
	if err != nil {
		return nil, err
	}
	var out []Topic
	for _, d := range dirs {
		var m Topic
		_, err := ReadTwice(disk, log, path.Join(topicsDir, d.Name(), TopicFile), func(data []byte) error {
			m = Topic{}
			return UnsealFile(data, &m, func() error { return m.Check(d.Name()) })
		})
		if err != nil {
			odd(d.Name(), err)
			continue
		}
		out = append(out, m)
	}
	return out, nil
}

// Check says whether topic.json can belong to this directory.
func (m *Topic) Check(dir string) error {
	switch {
	case m.Format > TopicFormat:
		return fmt.Errorf("format %d is of a newer version", m.Format)
	case m.ID.String() != dir || !base.ValidTopicName(m.Name) || m.Partitions < 1 || m.Partitions > MaxPartitions:
		return fmt.Errorf("%s does not describe this directory", TopicFile)
	}
	return nil
}

// Write writes a topic's directory and topic.json durably.
func (m *Topic) Write(disk aio.Disk) error {
	dir := TopicPath(m.ID)
	if err := disk.MkdirAll(dir); err != nil {
		return err
	}
	return WriteTwice(disk, path.Join(dir, TopicFile), m)
}

// TrashTopic durably moves a topic's directory to the trash. Its bytes are removed later.
func TrashTopic(disk aio.Disk, id uuid.UUID) error {
	if err := disk.MkdirAll(Trash); err != nil {
		return err
	}
	err := disk.Rename(TopicPath(id), path.Join(Trash, id.String()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := disk.SyncDir(topicsDir); err != nil {
		return err
	}
	return disk.SyncDir(Trash)
}

func TopicPath(id uuid.UUID) string { return path.Join(topicsDir, id.String()) }

func PartitionPath(id uuid.UUID, number uint32) string {
	return path.Join(TopicPath(id), fmt.Sprint(number))
}
