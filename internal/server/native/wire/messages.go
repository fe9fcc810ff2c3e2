package wire

import (
	"github.com/google/uuid"

	"penstock/netproto"
)

// The types; those of consumers are in consume.go. An answer has the request id of its request, and its status in the
// frame's header.
const (
	TypeAuth          netproto.Type = 64 // to a node, first: who the client is
	TypeAuthAck       netproto.Type = 65 // its answer
	TypeMetadata      netproto.Type = 66 // to a node: which partitions topics have, now and whenever that changes
	TypeMetadataReply netproto.Type = 67 // its answer, and later ones with request 0
	TypeOpenProducer  netproto.Type = 68 // to a leader: begin to publish to a partition
	TypeProducer      netproto.Type = 69 // its answer
	TypeProduce       netproto.Type = 70 // to a leader: a sealed batch
	TypeProduced      netproto.Type = 71 // its answer, once the batch is on stable storage everywhere
	TypeRead          netproto.Type = 72 // to a leader: begin to read a partition; the request id names the reader
	TypeRecords       netproto.Type = 73 // from the leader: stored batches
	TypeReadCredit    netproto.Type = 74 // to the leader: how many more bytes it may send
	TypeReadEnd       netproto.Type = 75 // either way: the reader is closed; from the leader with the reason
	TypeGoAway        netproto.Type = 76 // from a node that stops: finish what is on its way and connect elsewhere
)

// Limits of the fields.
const (
	MaxTokenBytes     = 2048
	MaxNameBytes      = 255 // of a topic, node, producer or client
	MaxTextBytes      = 1024
	MaxTopicCount     = 1024 // in one Metadata
	MaxNodeCount      = 1000
	MaxPartitionCount = 1 << 16

	// NoLeader is the index of the leader of a partition that has none now.
	NoLeader = 1<<16 - 1
)

// Auth is the first frame of a client. Without authentication at the node, Token is ignored.
type Auth struct {
	Token  string
	Client string // name and version of the program, for people
}

func (m *Auth) code(c *coder) {
	c.text(&m.Token, MaxTokenBytes)
	c.text(&m.Client, MaxNameBytes)
}

// Outcome is the payload of an answer that says nothing but its status: AuthAck, ReadEnd, GoAway, Synced,
// SubscribeEnd, and every refusal.
type Outcome struct {
	Text string // for people; empty with StatusOK
	// First is, in a ReadEnd because what was asked for is gone, the first id that exists; in the refusal of an
	// OpenProducer because a later tenure is known, that one, and with StatusRejected TooManyProducers, if that is why;
	// else it is 0.
	First uint64
	// Address is where to go, in a GoAway and with StatusNotLeader; empty: ask for metadata.
	Address string
}

// TooManyProducers is the First of a refusal because no further name can be opened in the partition.
const TooManyProducers = 1

func (m *Outcome) code(c *coder) {
	c.u64(&m.First)
	c.text(&m.Text, MaxTextBytes)
	c.text(&m.Address, MaxNameBytes)
}

// MetadataRequest replaces the list of topics that the client wants to hear of.
type MetadataRequest struct {
	Topics []string
	Create bool // create those that do not exist, if the client may publish to them
}

func (m *MetadataRequest) code(c *coder) {
	c.yes(&m.Create)
	list(c, &m.Topics, MaxTopicCount, 2, func(c *coder, name *string) { c.text(name, MaxNameBytes) })
}

// Metadata says where the topics are that the client asked for.
type Metadata struct {
	// Revision grows with each change, and older ones must be ignored. Nodes of a cluster share it. That of a single node,
	// whose Hello has equal Cluster and Store, is compared only with others of the same process (Hello.Boot).
	Revision uint64
	Nodes    []Node // those that lead one of the partitions
	Topics   []Topic
}

// Node is a node that leads partitions.
type Node struct {
	Name    string
	Address string // for native clients; empty: the node that answers, which has no other address
}

// Topic is one topic of a Metadata.
type Topic struct {
	Name       string
	Status     netproto.Status // not OK: the topic cannot be used, and the rest is empty
	ID         uuid.UUID
	Partitions []Partition
}

// Partition is one partition of a topic.
type Partition struct {
	Leader uint16 // index in Metadata.Nodes, or NoLeader
	Epoch  uint64 // of the leadership
}

func (m *Metadata) code(c *coder) {
	c.u64(&m.Revision)
	list(c, &m.Nodes, MaxNodeCount, 4, func(c *coder, n *Node) {
		c.text(&n.Name, MaxNameBytes)
		c.text(&n.Address, MaxNameBytes)
	})
	list(c, &m.Topics, MaxTopicCount, 24, func(c *coder, t *Topic) {
		c.text(&t.Name, MaxNameBytes)
		c.u16((*uint16)(&t.Status))
		c.uuid(&t.ID)
		list(c, &t.Partitions, MaxPartitionCount, 10, func(c *coder, p *Partition) {
			c.u16(&p.Leader)
			if !c.writing && c.err == nil && p.Leader != NoLeader && int(p.Leader) >= len(m.Nodes) {
				c.fail("leader %d of %d nodes", p.Leader, len(m.Nodes))
			}
			c.u64(&p.Epoch)
		})
	})
}

// OpenProducer asks for the right to publish to a partition. A producer with a name is the same one after its program
// was started again; opening it ends the epoch of the program before. Without a name it is a new one.
type OpenProducer struct {
	Topic     uuid.UUID
	Partition uint32
	Name      string
	// Tenure is for how long the program holds the name in all partitions of the topic: see node.Topic.HoldProducer. A
	// node that knows a later one answers StatusOldEpoch, with that one in Outcome.First. 0 begins a new tenure.
	Tenure uint64
}

func (m *OpenProducer) code(c *coder) {
	c.uuid(&m.Topic)
	c.u32(&m.Partition)
	c.text(&m.Name, MaxNameBytes)
	c.last(&m.Tenure)
}

// Producer is what a producer puts into the headers of its batches.
type Producer struct {
	ID       uint64 // not 0
	Epoch    uint32
	Sequence uint32 // of the next message
	Tenure   uint64 // for which the name is held; below 2^32 or 0: the node, or the producer, has none
}

func (m *Producer) code(c *coder) {
	c.u64(&m.ID)
	c.u32(&m.Epoch)
	c.u32(&m.Sequence)
	c.last(&m.Tenure)
}

// Produce is the head of a self-checked frame; one sealed batch follows.
type Produce struct {
	Topic     uuid.UUID
	Partition uint32
}

// ProduceBytes is the length of the head.
const ProduceBytes = 24

func (m *Produce) code(c *coder) {
	c.uuid(&m.Topic)
	c.u32(&m.Partition)
	c.zero(4)
}

// Produced answers a Produce that was stored. Any other outcome has the payload of Outcome.
type Produced struct {
	First     uint64 // id of the first message; the others are consecutive
	Duplicate bool   // the batch had been stored before, as the answer says
}

func (m *Produced) code(c *coder) {
	var flags uint64
	if m.Duplicate {
		flags = 1
	}
	c.u64(&m.First)
	if c.u64(&flags); flags > 1 {
		c.fail("flags %#x", flags)
	}
	m.Duplicate = flags&1 != 0
}

// From says where a reader, or a channel that is created, begins.
type From uint8

// Where a reader or a channel begins.
const (
	FromID     From = 0 // at the message with the id Value, or the first one above it
	FromTime   From = 1 // at the first message stored at Value or later, ns since 1970, by the leader's clock
	FromOldest From = 2 // at the oldest message that is kept
	FromNewest From = 3 // behind the newest message
	// FromDefault, for a channel only: where channels begin if nobody says anything
	FromDefault From = 4
)

// Read begins to read a partition.
type Read struct {
	Topic     uuid.UUID
	Partition uint32
	From      From
	Value     int64
	Credit    uint32 // bytes of batches that may be sent; the leader goes on while any are left
}

func (m *Read) code(c *coder) {
	c.uuid(&m.Topic)
	c.u32(&m.Partition)
	if c.u8((*uint8)(&m.From)); m.From > FromNewest {
		c.fail("place %d", m.From)
	}
	c.zero(3)
	c.i64(&m.Value)
	c.u32(&m.Credit)
}

// Records is the head of a self-checked frame; stored batches follow, whole and back to back. Messages below Next that
// they hold were delivered before, or lie before the place where the reader begins, and must be skipped. The first
// Records of a reader comes at once, without batches if there are none yet: so readers of an empty partition know.
type Records struct {
	Next   uint64 // id of the first message that is meant
	Newest uint64 // id that the partition's next message will have, so readers know how far behind they are
}

// RecordsBytes is the length of the head.
const RecordsBytes = 16

func (m *Records) code(c *coder) {
	c.u64(&m.Next)
	c.u64(&m.Newest)
}

// ReadCredit lets the leader send more bytes of batches.
type ReadCredit struct{ Bytes uint32 }

func (m *ReadCredit) code(c *coder) { c.u32(&m.Bytes) }
