package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	tp "penstock/internal/node/topic"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Copy is the content and the state of a node's copy of a partition, for tests that compare nodes.
type Copy struct {
	Start, End segment.Offset
	Next       segment.Position
	NextID     segment.MsgID
	Committed  segment.Position
	Visible    segment.MsgID
	Bytes      []byte // all batches from Start to End
	Epochs     []replicate.EpochStart
	Cursors    []byte // the state of the channels
	Segments   int
	Serves     bool
}

// StateOf returns what CopyOf does without the bytes. It reads nothing from the disk, so tests may ask again and again.
func StateOf(e *Engine, topic string, n int) (c Copy, err error) {
	pt, err := copyHere(e, topic, n)
	if err != nil {
		return c, err
	}
	s, log := pt.State(), pt.Log()
	c.Next, c.NextID, c.End = s.State.Next, s.State.NextID, s.State.End
	c.Committed, c.Visible, c.Serves = s.Committed, s.Visible, s.Serves
	c.Epochs, c.Cursors = s.Epochs, s.Cursors
	c.Start, _, _ = log.Start()
	c.Segments = len(log.Segments())
	return c, nil
}

// LeaderOf returns the node that e takes for the leader of a partition, and sends its puts to.
func LeaderOf(e *Engine, topic string, n int) replicate.NodeID {
	t, ok := e.Catalog().LookupTopic(topic)
	if !ok {
		return 0
	}
	return t.PartitionList()[n].Target()
}

// CopyOf reads e's copy of a partition. It returns an error if e has no copy, or cannot read it back.
func CopyOf(e *Engine, topic string, n int) (c Copy, err error) {
	if c, err = StateOf(e, topic, n); err != nil {
		return c, err
	}
	pt, err := copyHere(e, topic, n)
	if err != nil {
		return c, err
	}
	log := pt.Log()
	c.Bytes = make([]byte, 0, c.End-c.Start)
	for at := c.Start; at < c.End; {
		var v segment.View
		if err := log.View(&v, at, 1<<20); err != nil {
			return c, fmt.Errorf("at %d of [%d, %d): %w", at, c.Start, c.End, err)
		}
		b := v.Bytes()
		c.Bytes = append(c.Bytes, b...)
		at += segment.Offset(len(b))
		v.Release()
		if len(b) == 0 {
			return c, errors.New("an empty view")
		}
	}
	c.Bytes = c.Bytes[:c.End-c.Start]
	return c, nil
}

// copyHere returns e's copy of a partition, or an error if it has none.
func copyHere(e *Engine, topic string, n int) (*partition.Partition, error) {
	t, ok := e.Catalog().LookupTopic(topic)
	if !ok {
		return nil, errs.ErrNoTopic
	}
	all := t.PartitionList()
	if n >= len(all) { // the node has not learnt yet that the topic has more
		return nil, errs.ErrNoPartition
	}
	if !all[n].Replica().HasLog() {
		return nil, errs.ErrNoLeader
	}
	return all[n], nil
}

// Messages returns the bodies that are stored in the copy, by id, committed or not.
func (c *Copy) Messages(partition int) (map[ID]string, error) {
	all := map[ID]string{}
	var it segment.BatchIter
	it.Reset(c.Bytes)
	for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
		if h.Control() {
			continue
		}
		var records segment.RecordIter
		records.Reset(h, body)
		id := h.FirstID
		for r, ok := records.Next(); ok; r, ok = records.Next() {
			all[batch.MakeID(uint32(partition), id)] = string(r.Body)
			id++
		}
		if err := records.Err(); err != nil {
			return nil, err
		}
	}
	return all, it.Err()
}

// ConnectedTo says whether e is connected to another node.
func ConnectedTo(e *Engine, node replicate.NodeID) bool { return e.cluster.Net.Connected(node) }

// TopicDir returns the path of a topic's files in the data directory.
func TopicDir(e *Engine, topic string) string {
	t, _ := e.Catalog().LookupTopic(topic)
	return datadir.TopicPath(t.ID())
}

// Present says whether a node's copy of a partition takes part in replication.
func Present(e *Engine, topic string, n int) bool {
	t, ok := e.Catalog().LookupTopic(topic)
	return ok && t.PartitionList()[n].Replica().Present()
}

// EndCopy ends a copy as Close does, and then applies the partition's row once more, as the worker may do until Close
// has stopped it.
func EndCopy(e *Engine, topic string, n int) {
	t, _ := e.Catalog().LookupTopic(topic)
	pt := t.PartitionList()[n]
	pt.Replica().End(errs.ErrClosed)
	e.cluster.topics.applyRow(e.cluster.Rows.Snapshot(), pt.Identity())
}

// Leased says whether a node has a lease now.
func Leased(e *Engine) bool { return e.cluster.Leased() }

// Leads says whether a node takes puts for a partition.
func Leads(e *Engine, topic string, n int) bool {
	t, _ := e.Catalog().LookupTopic(topic)
	return t.PartitionList()[n].Leads()
}

// DurableGroup returns the number of the newest durable group of a node's commit log.
func DurableGroup(e *Engine) uint64 { return e.store.CommitLog().Durable() }

// FoldHas says whether a channel is in the log of a copy, committed or not.
func FoldHas(e *Engine, topic string, n int, channel string) bool {
	channels := partitionOf(e, topic, n).State().Channels
	return slices.ContainsFunc(channels, func(c partition.ChannelView) bool { return c.Name == channel })
}

// HoldChannels holds topic.Local.changing until release is called: the node cannot change the channels of the topic, or
// give them other partitions.
func HoldChannels(e *Engine, topic string) (release func()) {
	t, _ := e.Catalog().LookupTopic(topic)
	held, released := make(chan struct{}), make(chan struct{})
	go func() { // on a goroutine of its own, because the caller may hold this lock of several nodes
		release := tp.Hooks{T: t}.Hold()
		close(held)
		<-released
		release()
	}()
	<-held
	return func() { close(released) }
}

// PutTogetherAnew shuts a channel and makes the topic's channels again, as it happens when a leadership ends and
// begins. The caller has called HoldChannels. create then writes the channel into partition n on behalf of the old
// Channel, which was shut.
func PutTogetherAnew(e *Engine, topic, channel string) (create func(ctx context.Context, n int) error) {
	t, _ := e.Catalog().LookupTopic(topic)
	return tp.Hooks{T: t}.MakeAnew(channel)
}

// CreateLater returns a function that writes a channel into partition n, as the goroutine does that syncChannels starts
// when a partition lacks the channel.
func CreateLater(e *Engine, topic, channel string, n int) func(context.Context) error {
	t, _ := e.Catalog().LookupTopic(topic)
	c, _ := t.LookupChannel(channel)
	return func(ctx context.Context) error { return tp.Hooks{T: t}.CreateIn(ctx, c, n) }
}

// ChannelHas says whether a node's channel has been given a partition.
func ChannelHas(e *Engine, topic, channel string, n int) bool {
	t, _ := e.Catalog().LookupTopic(topic)
	c, ok := t.LookupChannel(channel)
	return ok && c.Local().HasPartition(n)
}

// AppendChannel submits the creation of a channel to a partition that e leads, and does not wait for the commit.
func AppendChannel(e *Engine, topic string, n int, channel string) error {
	t, _ := e.Catalog().LookupTopic(topic)
	created := []fold.Control{{Kind: fold.ChannelCreated, Channel: channel}}
	return t.PartitionList()[n].NewControls(nil, false, func(error) {})(created)
}

// BeginPause executes the first half of a request to pause a topic in a partition: it looks up the epoch in which e
// serves the partition. It returns nil if e does not serve it. goOn executes the rest.
func BeginPause(e *Engine, topic string, n int) (goOn func(context.Context) error) {
	t, _ := e.Catalog().LookupTopic(topic)
	op := wire.Operation{Kind: wire.OpPauseTopic, Flag: true, Topic: t.ID(), Partitions: []uint32{uint32(n)}}
	return tp.Hooks{T: t}.Begin(op)
}

// EndOf returns the state of a copy's log behind its last batch.
func EndOf(e *Engine, topic string, n int) segment.State {
	return partitionOf(e, topic, n).State().State
}

// RunAtEnd returns the segment into which the next batch of a copy will go, if the batch is small.
func RunAtEnd(e *Engine, topic string, n int) wire.Run {
	st := EndOf(e, topic, n)
	return wire.Run{Segment: st.Segment, Base: st.SegmentBase, Capacity: st.SegmentCapacity}
}

// Hear passes a frame of another node to an engine, as the connection's reader does.
func Hear(e *Engine, from replicate.NodeID, f *netproto.Frame, body []byte) {
	payload := append(append([]byte(nil), f.Head...), body...)
	e.cluster.Frames(from, uuid.Nil, []netproto.Received{{
		Header: netproto.Header{
			Type: f.Type, Flags: f.Flags, Status: f.Status, Request: f.Request,
			HeadBytes: uint16(len(f.Head)), PayloadBytes: uint32(len(payload)),
		},
		Payload: payload,
	}})
}

// ConfirmBody returns the body of a control batch that confirms the ids from from to to, exclusive, of a channel.
func ConfirmBody(channel string, from, to segment.MsgID) []byte {
	return fold.AppendControl(nil, &fold.Control{
		Kind: fold.Confirmed, Channel: channel, Ranges: []fold.IDRange{{From: from, To: to}},
	})
}

// ConfirmedBelow returns the id of the first message that the channel has not confirmed, by the fold of a copy.
func ConfirmedBelow(e *Engine, topic string, n int, channel string) (below segment.MsgID) {
	for _, c := range partitionOf(e, topic, n).State().Channels {
		if c.Name == channel {
			below = c.Confirmed
		}
	}
	return below
}

// ExchangeOf returns the number of the exchange in which a follower learned where its log agrees with the leader's. The
// follower ignores frames of another exchange.
func ExchangeOf(e *Engine, topic string, n int) uint64 {
	return partitionOf(e, topic, n).State().Exchange
}

// PartitionOf returns the identity of a partition, which names it in the metadata.
func PartitionOf(e *Engine, topic string, n int) segment.Identity {
	t, _ := e.Catalog().LookupTopic(topic)
	return t.PartitionList()[n].Identity()
}

// FailFlush does what the flusher does when it meets the damaged head of a segment: it closes the inbox. It says
// whether the inbox is closed.
func FailFlush(e *Engine, topic string, n int) bool {
	t, _ := e.Catalog().LookupTopic(topic)
	pt := t.PartitionList()[n]
	for _, s := range pt.Log().Segments() {
		if s.Err != nil && !pt.GivenUp() {
			pt.CloseAndRefuse(errs.ErrDisk, true)
		}
	}
	return pt.WhyClosed() != nil
}

// Tick passes the time once to the replica of a copy, without other live nodes.
func Tick(e *Engine, topic string, n int) {
	t, _ := e.Catalog().LookupTopic(topic)
	t.PartitionList()[n].Replica().Tick(e.cluster.Until(), nil)
}

// BeganAnew returns how often the log of a copy was reset or cut.
func BeganAnew(e *Engine, topic string, n int) uint64 {
	return partitionOf(e, topic, n).State().Logs
}
