package native

import (
	"cmp"
	"crypto/sha256"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// place is what a Server knows at one moment of where partitions are. A node of a cluster reads it from the snapshot,
// in which all nodes stand with the addresses that they registered. snap is nil on a single node, which leads all.
type place struct {
	snap *meta.Snapshot
	self meta.Node                             // on a single node it has only a name
	find func(name string) (*node.Topic, bool) // on a single node
	now  uint64                                // on a single node: ns since 1970
}

func (s *Server) place() place {
	p := place{snap: s.engine.Snapshot(), self: s.engine.Node()}
	if p.snap == nil {
		p.self.Name, p.find, p.now = s.hello.NodeID, s.engine.Catalog().LookupTopic, uint64(s.engine.Now().UnixNano())
	}
	return p
}

// leader returns the node that leads a partition, if clients can connect to it, and otherwise nil. A process that was
// started again does not lead what its predecessor was elected for.
func (p *place) leader(id meta.PartitionID) (n *meta.Node, epoch uint64) {
	row := p.snap.Partitions.Get(id)
	if row == nil {
		return nil, 0
	}
	n, epoch = p.snap.Nodes[row.State.Leader], uint64(row.State.Epoch)
	if n == nil || n.Boot != row.State.Boot || n.Native == "" && n.ID != p.self.ID {
		return nil, epoch
	}
	return n, epoch
}

// address returns the address at which native clients reach the leader of a partition, or "" if it is not known.
func (p *place) address(topic uuid.UUID, partition uint32) string {
	if p.snap == nil {
		return ""
	}
	n, _ := p.leader(meta.PartitionID{Topic: topic, Partition: partition})
	if n == nil {
		return ""
	}
	return n.Native
}

// refuge returns where a client of this node connects when it stops: to the node that leads the most partitions of the
// client's topics, among live ones that are not drained. turn chooses among equals, so that not all go to the same one.
// It returns "" if no such node is known.
func (p *place) refuge(topics []string, turn int) string {
	if p.snap == nil {
		return ""
	}
	led := map[*meta.Node]int{}
	for _, name := range topics {
		t := p.snap.Names[name]
		for i := 0; t != nil && i < t.Partitions; i++ {
			if n, _ := p.leader(meta.PartitionID{Topic: t.ID, Partition: uint32(i)}); n != nil {
				led[n]++
			}
		}
	}
	var best []*meta.Node
	for _, n := range p.snap.Nodes {
		switch {
		case n.ID == p.self.ID || !n.Live || n.Draining || n.Native == "":
		case len(best) == 0 || led[n] > led[best[0]]:
			best = []*meta.Node{n}
		case led[n] == led[best[0]]:
			best = append(best, n)
		}
	}
	if len(best) == 0 {
		return ""
	}
	slices.SortFunc(best, func(a, b *meta.Node) int { return cmp.Compare(a.ID, b.ID) })
	return best[turn%len(best)].Native
}

// describe makes the Metadata of some topics. status says why a client may not use a topic; StatusOK: it may, if the
// topic exists.
func (p *place) describe(names []string, status func(name string) netproto.Status) *wire.Metadata {
	m := &wire.Metadata{Revision: p.now}
	if p.snap != nil {
		m.Revision = uint64(p.snap.Revision)
	}
	indices := map[*meta.Node]uint16{}
	index := func(n *meta.Node) uint16 {
		i, ok := indices[n]
		if !ok {
			if len(m.Nodes) == wire.MaxNodeCount {
				return wire.NoLeader
			}
			i = uint16(len(m.Nodes))
			indices[n] = i
			m.Nodes = append(m.Nodes, wire.Node{Name: n.Name, Address: n.Native})
		}
		return i
	}
	for _, name := range names {
		t := wire.Topic{Name: name, Status: status(name)}
		if t.Status == netproto.StatusOK && !p.fill(&t, index) {
			t.Status = netproto.StatusRejected
		}
		m.Topics = append(m.Topics, t)
	}
	return m
}

// fill puts a topic's identity and partitions into t. It returns false if there is no such topic.
func (p *place) fill(t *wire.Topic, index func(*meta.Node) uint16) bool {
	if p.snap == nil {
		found, ok := p.find(t.Name)
		if !ok {
			return false
		}
		t.ID, t.Partitions = found.ID(), make([]wire.Partition, min(found.Partitions(), wire.MaxPartitionCount-1))
		for i := range t.Partitions {
			t.Partitions[i] = wire.Partition{Leader: index(&p.self), Epoch: 1}
		}
		return true
	}
	found := p.snap.Names[t.Name]
	if found == nil {
		return false
	}
	t.ID, t.Partitions = found.ID, make([]wire.Partition, min(found.Partitions, wire.MaxPartitionCount-1))
	for i := range t.Partitions {
		n, epoch := p.leader(meta.PartitionID{Topic: found.ID, Partition: uint32(i)})
		t.Partitions[i] = wire.Partition{Leader: wire.NoLeader, Epoch: epoch}
		if n != nil {
			t.Partitions[i].Leader = index(n)
		}
	}
	return true
}

// told is what a client was told last.
type told struct {
	revision uint64
	sum      [sha256.Size]byte // of everything behind the revision
}

const revisionBytes = 8 // at the beginning of an encoded Metadata

// next returns the payload that the client has to be told, or nil if it knows that already. The revision never falls on
// a connection. Revisions of a single node count for one process only: see Metadata in package wire.
func (t *told) next(m *wire.Metadata, asked bool) []byte {
	m.Revision = max(m.Revision, t.revision)
	payload := wire.Append(nil, m)
	sum := sha256.Sum256(payload[revisionBytes:])
	if !asked && sum == t.sum {
		return nil
	}
	t.revision, t.sum = m.Revision, sum
	return payload
}

// metadataPageBytes is about how long a Metadata may be; a longer one is sent in pieces. 1024 topics with 16,384
// partitions each have 160 MiB, and a connection takes frames of 16 MiB.
const metadataPageBytes = 4 << 20

// paged divides a Metadata into several, each about some of the topics. One has more bytes than limit only if its first
// topic alone has as many. Each names all nodes, which do not count.
func paged(m *wire.Metadata, limit int) (pages []*wire.Metadata) {
	size := 0
	for i := range m.Topics {
		t := &m.Topics[i]
		n := topicBytes + len(t.Name) + partitionBytes*len(t.Partitions)
		if size += n; i == 0 || size > limit {
			pages = append(pages, &wire.Metadata{Revision: m.Revision, Nodes: m.Nodes})
			size = n
		}
		last := pages[len(pages)-1]
		last.Topics = append(last.Topics, *t)
	}
	return pages
}

// What a topic has in a Metadata beside its name, and a partition.
const topicBytes, partitionBytes = 24, 10

// unique returns the names without repetitions, in their order. It reuses the slice.
func unique(names []string) []string {
	seen := make(map[string]bool, len(names))
	out := names[:0]
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}
