package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

const (
	// MarkFile of a data directory has its Mark. It is there if the directory was restored from a backup, or if the
	// metadata were rebuilt with it.
	MarkFile = "restored.json"
	// SeedFile of a data directory has an Export whose rows Revive made: the metadata store that the node is to begin.
	// The node removes it when it has done so.
	SeedFile = "cluster-restore.json"
	// ExportFile of a data directory has an encoded Export: of the backup that the directory was restored from, or what
	// the metadata were last rebuilt from. It is only read to rebuild them, if nothing newer is found.
	ExportFile = "cluster.json"
	// ExportFormat is the only format of Export so far.
	ExportFormat = 1
	// restoredEpochs is by how much Revive raises each partition's epoch. The dead cluster elected fewer leaders than
	// this after the export: so no epoch that any of its logs knows is begun a second time.
	restoredEpochs = 1 << 20
	// restoredVersions does the same for the versions of topics' settings.
	restoredVersions = 1 << 20
)

// Export is the metadata of a cluster at one revision, as a backup of a node has it. FORMAT.md describes it.
type Export struct {
	Format     int       `json:"format"`
	Cluster    uuid.UUID `json:"cluster"`
	Generation uint64    `json:"generation"` // how often the cluster was restored before
	Revision   int64     `json:"revision"`   // within the generation
	TakenMs    int64     `json:"taken_ms"`   // Unix time; for people
	Rows       []Row     `json:"rows"`       // sorted by key
}

// Row is a key without its prefix, and its value: Text, or Bytes if that is not UTF-8.
type Row struct {
	Key   string `json:"key"`
	Text  string `json:"text,omitempty"`
	Bytes []byte `json:"bytes,omitempty"`
}

// Value returns the value of the row.
func (r *Row) Value() []byte {
	if r.Bytes != nil {
		return r.Bytes
	}
	return []byte(r.Text)
}

func rowOf(key string, value []byte) Row {
	if utf8.Valid(value) {
		return Row{Key: key, Text: string(value)}
	}
	return Row{Key: key, Bytes: value}
}

// restoredRow says that the metadata were rebuilt: of which revision of the generation before, and with the data
// directories of which nodes.
type restoredRow struct {
	Generation uint64   `json:"generation"`
	Revision   int64    `json:"revision"`
	Nodes      []string `json:"nodes"`
}

// Newer says whether e is of a later moment than o. Both are of one cluster.
func (e *Export) Newer(o *Export) bool {
	return e.Generation > o.Generation || e.Generation == o.Generation && e.Revision > o.Revision
}

// ExportOf returns the export of a cluster whose keys, with prefix, are entries, read at revision.
func ExportOf(entries []kv.Entry, prefix string, revision int64, at time.Time) (*Export, error) {
	e := &Export{Format: ExportFormat, Revision: revision, TakenMs: at.UnixMilli()}
	for i := range entries {
		key, ok := strings.CutPrefix(entries[i].Key, prefix)
		if !ok {
			continue
		}
		switch value := entries[i].Value; key {
		case clusterKey:
			if err := json.Unmarshal(value, &e.Cluster); err != nil {
				return nil, fmt.Errorf("cluster: the row %s cannot be read: %w", clusterKey, err)
			}
		case restoredKey:
			var r restoredRow
			if err := json.Unmarshal(value, &r); err != nil {
				return nil, fmt.Errorf("cluster: the row %s cannot be read: %w", restoredKey, err)
			}
			e.Generation = r.Generation
		}
		e.Rows = append(e.Rows, rowOf(key, entries[i].Value))
	}
	if e.Cluster == uuid.Nil {
		return nil, errors.New("cluster: the store has no cluster under this name")
	}
	slices.SortFunc(e.Rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	return e, nil
}

// Export implements meta.Store.
func (s *store) Export(ctx context.Context) ([]byte, error) {
	entries, revision, err := s.kv.List(ctx, s.opts.Prefix)
	if err != nil {
		return nil, unavailable(err)
	}
	e, err := ExportOf(entries, s.opts.Prefix, revision, s.opts.Now())
	if err != nil {
		return nil, err
	}
	return e.Encode()
}

// Encode encodes e for ReadExport.
func (e *Export) Encode() ([]byte, error) { return json.Marshal(e) }

// ReadExport decodes what Export encoded.
func ReadExport(data []byte) (*Export, error) {
	e := new(Export)
	err := json.Unmarshal(data, e)
	if err == nil && e.Format != ExportFormat {
		err = fmt.Errorf("it has format %d, and this version knows %d", e.Format, ExportFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: the metadata cannot be read: %w", err)
	}
	return e, nil
}

// Revive returns the rows of a new metadata store for the cluster, whose nodes all have stopped. stores has the data
// directories that come back, by the names of their nodes: a directory may be another one than these metadata know. It
// has no side effects.
//
// Nobody is alive. Each partition gets an epoch above all epochs of its logs. Whether a replica was in sync when the
// export was taken says nothing about its directory, which is of another moment. So the ISR has all replicas that come
// back, and State.Restored makes a leader compare itself with all of them: the latest log wins. If none comes back, the
// ISR has all replicas, and the partition waits for them.
func (e *Export) Revive(stores map[string]uuid.UUID) ([]Row, error) {
	known, err := e.nodes()
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i := range e.Rows {
		row, keep, err := e.revive(&e.Rows[i], known, stores)
		if err != nil {
			return nil, fmt.Errorf("cluster: the row %s of the metadata cannot be read: %w", e.Rows[i].Key, err)
		}
		if keep {
			rows = append(rows, row)
		}
	}
	rows = append(rows, rowOf(restoredKey, encode(restoredRow{
		Generation: e.Generation + 1, Revision: e.Revision, Nodes: slices.Sorted(maps.Keys(stores)),
	})))
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	return rows, nil
}

// nodes returns the rows of the nodes.
func (e *Export) nodes() (map[replicate.NodeID]meta.Node, error) {
	known := map[replicate.NodeID]meta.Node{}
	for i := range e.Rows {
		rest, found := strings.CutPrefix(e.Rows[i].Key, nodesDir)
		if !found {
			continue
		}
		id, err := parseNode(rest)
		var n meta.Node
		if err == nil {
			err = json.Unmarshal(e.Rows[i].Value(), &n)
		}
		if err != nil {
			return nil, unreadableRow(&e.Rows[i], err)
		}
		known[id] = n
	}
	return known, nil
}

func unreadableRow(r *Row, err error) error {
	return fmt.Errorf("cluster: the row %s of the metadata cannot be read: %w", r.Key, err)
}

// PlacedPartition says where the copies of a partition are, by the metadata.
type PlacedPartition struct {
	ID    meta.PartitionID
	Topic string
	Nodes []string // names, the preferred leader first
}

// Placement returns all partitions of the metadata, sorted by topic and number.
func (e *Export) Placement() (all []PlacedPartition, err error) {
	known, err := e.nodes()
	if err != nil {
		return nil, err
	}
	topics := map[uuid.UUID]string{}
	for i := range e.Rows { // topics/ follows parts/
		r := &e.Rows[i]
		switch folder, rest := splitKey(r.Key); folder {
		case topicsDir:
			var t meta.Topic
			if err := json.Unmarshal(r.Value(), &t); err != nil {
				return nil, unreadableRow(r, err)
			}
			topics[t.ID] = t.Name
		case partsDir:
			id, err := parsePart(rest)
			if err != nil {
				return nil, unreadableRow(r, err)
			}
			p, err := decodePartition(id, r.Value())
			if err != nil {
				return nil, unreadableRow(r, err)
			}
			placed := PlacedPartition{ID: id}
			for _, n := range p.State.Replicas {
				placed.Nodes = append(placed.Nodes, cmp.Or(known[n].Name, strconv.FormatUint(uint64(n), 10)))
			}
			all = append(all, placed)
		}
	}
	for i := range all {
		all[i].Topic = topics[all[i].ID.Topic]
	}
	all = slices.DeleteFunc(all, func(p PlacedPartition) bool { return p.Topic == "" }) // of a topic that is being deleted
	slices.SortFunc(all, func(a, b PlacedPartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.ID.Partition, b.ID.Partition))
	})
	return all, nil
}

// revive returns a row as Revive writes it. keep is false for what was said of processes that are gone.
func (e *Export) revive(r *Row, known map[replicate.NodeID]meta.Node, stores map[string]uuid.UUID) (
	_ Row, keep bool, _ error,
) {
	folder, rest := splitKey(r.Key)
	switch {
	case folder == liveDir, folder == downDir, folder == creatingDir, r.Key == controllerKey, r.Key == restoredKey:
		return Row{}, false, nil
	case folder == partsDir:
		id, err := parsePart(rest)
		if err != nil {
			return Row{}, false, err
		}
		p, err := decodePartition(id, r.Value())
		if err != nil {
			return Row{}, false, err
		}
		return e.rewritten(r, encodePartition(restoredPartition(p, known, stores)))
	case folder == topicsDir:
		var t meta.Topic
		if err := json.Unmarshal(r.Value(), &t); err != nil {
			return Row{}, false, err
		}
		if t.Settings.Version == 0 {
			return *r, true, nil
		}
		t.Settings.Version += restoredVersions
		return e.rewritten(r, encode(t))
	case folder == nodesDir:
		var n meta.Node
		if err := json.Unmarshal(r.Value(), &n); err != nil {
			return Row{}, false, err
		}
		n.Store = cmp.Or(stores[n.Name], n.Store)
		// They are of a directory of another moment. The restored one has all its copies shortened anyway.
		n.Logged, n.UnknownTopics, n.ClockDiffers = 0, 0, false
		return e.rewritten(r, encode(n))
	}
	return *r, true, nil
}

// rewritten returns the row with the next value, and with what this version does not know of the old one.
func (e *Export) rewritten(r *Row, next []byte) (Row, bool, error) {
	was, err := knownRow(r.Key, r.Value(), false)
	if err != nil {
		return Row{}, false, err
	}
	return rowOf(r.Key, mergeUnknown(r.Value(), was, next)), true, nil
}

// restoredPartition returns the row of a partition in a restored cluster.
func restoredPartition(p *meta.Partition, known map[replicate.NodeID]meta.Node, stores map[string]uuid.UUID) (
	next *meta.Partition,
) {
	next = edit(p)
	var back, all []replicate.Member
	for _, id := range p.State.Replicas {
		n, ok := known[id]
		if !ok {
			continue
		}
		if store, comes := stores[n.Name]; comes {
			back = append(back, replicate.Member{Node: id, Store: store})
		}
		all = append(all, replicate.Member{Node: id, Store: n.Store})
	}
	if len(back) == 0 {
		back = all
	}
	afterRestore(&next.State, p.State.Epoch+restoredEpochs, back)
	return next
}

// Mark says which metadata were known to whoever restored the data directory, or rebuilt the metadata with it.
type Mark struct {
	Cluster    uuid.UUID `json:"cluster"`
	Generation uint64    `json:"generation"`
	Revision   int64     `json:"revision"`
}

// Seen returns the mark as what a node would have seen.
func (m Mark) Seen() meta.Seen { return meta.Seen(m) }

// MarkOf returns the mark of a backup with this export.
func MarkOf(e *Export) Mark { return Mark{e.Cluster, e.Generation, e.Revision} }

// CheckMark returns an error if the metadata were rebuilt without regard to the node's data directory: without counting
// on the node, or from metadata that are older than the backup that the directory comes from. Then copies of the node
// may be cut or removed although they have what no other copy has. m is of that backup; zero: the directory comes from
// none. seen is the newest state of the metadata that a process of the directory saw; zero: none did. entries are the
// keys of the store under prefix.
func CheckMark(m Mark, seen meta.Seen, name string, entries []kv.Entry, prefix string) error {
	i := slices.IndexFunc(entries, func(e kv.Entry) bool { return e.Key == prefix+restoredKey })
	if i < 0 {
		return nil
	}
	var r restoredRow
	if err := json.Unmarshal(entries[i].Value, &r); err != nil {
		return fmt.Errorf("cluster: the row %s cannot be read: %w", restoredKey, err)
	}
	again := "stop all nodes and run penstock rebuild-cluster again with all their data directories, this one included, " +
		"or start this node with an empty data directory"
	lived := seen.Cluster != uuid.Nil && seen.Generation >= r.Generation
	backup := m.Cluster != uuid.Nil && m.Generation >= seen.Generation // else the directory has lived on since
	switch {
	case !backup && seen.Cluster == uuid.Nil, lived, backup && m.Generation >= r.Generation:
		return nil
	case !slices.Contains(r.Nodes, name):
		return fmt.Errorf("cluster: its metadata were rebuilt without the data directory of node %s, whose messages might "+
			"be cut or removed: the node does not start, and its data is untouched; %s", name, again)
	case backup && (m.Generation+1 < r.Generation || m.Revision > r.Revision):
		return fmt.Errorf("cluster: its metadata were rebuilt from those of another moment than this node's backup has, and "+
			"copies that only this node has might be removed: the node does not start, and its data is untouched; %s", again)
	}
	return nil
}
