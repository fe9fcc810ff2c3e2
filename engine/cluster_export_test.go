package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"penstock/engine/core"
	"penstock/engine/dir"
	"penstock/engine/part"
	"penstock/engine/route"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Copy is what a node holds of a partition, for tests that compare nodes.
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

// CopyOf returns what e holds of a partition; an error says that it holds no copy, or that it does not read back.
func CopyOf(e *Engine, topic string, n int) (c Copy, err error) {
	t, ok := e.LookupTopic(topic)
	if !ok {
		return c, ErrNoTopic
	}
	pt := t.partitions()[n]
	if !pt.Replica().HasLog() {
		return c, ErrNoLeader
	}
	s, log := pt.State(), pt.Log()
	c.Next, c.NextID, c.End = s.State.Next, s.State.NextID, s.State.End
	c.Committed, c.Visible, c.Serves = s.Committed, s.Visible, s.Serves
	c.Epochs, c.Cursors = s.Epochs, s.Cursors
	c.Start, _, _ = log.Start()
	c.Segments = len(log.Segments())
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

// Messages are the bodies that are stored in the copy, by id, whether or not they are committed.
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
			all[core.MakeID(uint32(partition), id)] = string(r.Body)
			id++
		}
		if err := records.Err(); err != nil {
			return nil, err
		}
	}
	return all, it.Err()
}

// ConnectedTo says whether the connection to another node stands.
func ConnectedTo(e *Engine, node replicate.NodeID) bool { return e.cluster.Net.Connected(node) }

// TopicDir is where a topic's files lie in a data directory.
func TopicDir(e *Engine, topic string) string {
	t, _ := e.LookupTopic(topic)
	return dir.TopicPath(t.shared.ID)
}

// Present says whether a node's copy of a partition takes part.
func Present(e *Engine, topic string, n int) bool {
	t, ok := e.LookupTopic(topic)
	return ok && t.partitions()[n].Replica().Present()
}

// EndCopy ends a copy as Close does, and then the worker hears of its partition once more, as it may until Close has
// ended it, too.
func EndCopy(e *Engine, topic string, n int) {
	t, _ := e.LookupTopic(topic)
	pt := t.partitions()[n]
	pt.Replica().End(ErrClosed)
	e.cluster.applyRow(e.cluster.Rows.Snapshot(), pt.Identity())
}

// Leased says whether a node's lease lives.
func Leased(e *Engine) bool { return e.cluster.Leased() }

// Leads says whether a node takes puts for a partition.
func Leads(e *Engine, topic string, n int) bool {
	t, _ := e.LookupTopic(topic)
	return t.partitions()[n].Leads()
}

// FoldHas says whether a channel is in the log of a copy, committed or not.
func FoldHas(e *Engine, topic string, n int, channel string) bool {
	channels := partitionOf(e, topic, n).State().Channels
	return slices.ContainsFunc(channels, func(c part.ChannelView) bool { return c.Name == channel })
}

// HoldChannels keeps a node from changing the channels of a topic, or looking which there are, until release is called.
func HoldChannels(e *Engine, topic string) (release func()) {
	t, _ := e.LookupTopic(topic)
	held, released := make(chan struct{}), make(chan struct{})
	go func() { // the caller may hold those of several nodes
		t.changing.Lock()
		close(held)
		<-released
		t.changing.Unlock()
	}()
	<-held
	return func() { close(released) }
}

// PutTogetherAnew does with a topic's channels what happens when a leadership goes and comes, while HoldChannels keeps
// everybody else from it. What create then writes into one more partition it writes for the channel from before.
func PutTogetherAnew(e *Engine, topic, channel string) (create func(ctx context.Context, n int) error) {
	t, _ := e.LookupTopic(topic)
	old, _ := t.LookupChannel(channel)
	old.local.Shut(ErrMoved)
	t.mu.Lock()
	delete(t.channels, channel)
	t.mu.Unlock()
	t.adoption = route.Adoption{}
	t.adoption.Revoke(make([]segment.Epoch, t.Partitions()), func(int) bool { return false })
	t.assignPartitions()
	t.startChannels()
	return func(ctx context.Context, n int) error { return t.createIn(ctx, t.partitions()[n], old) }
}

// ChannelHas says whether a channel of a node has a partition.
func ChannelHas(e *Engine, topic, channel string, n int) bool {
	t, _ := e.LookupTopic(topic)
	c, ok := t.LookupChannel(channel)
	return ok && c.local.HasPartition(n)
}

// AppendChannel writes a channel into the log of a partition that e leads, and does not wait for it.
func AppendChannel(e *Engine, topic string, n int, channel string) error {
	t, _ := e.LookupTopic(topic)
	created := []core.Control{{Kind: core.ChannelCreated, Channel: channel}}
	return t.partitions()[n].NewControls(nil, false, func(error) {})(created)
}

// BeginPause asks a node to pause a topic for a partition that it serves, up to where it has found that it does; nil:
// it does not.
func BeginPause(e *Engine, topic string, n int) (goOn func(context.Context) error) {
	t, _ := e.LookupTopic(topic)
	op := wire.Operation{Kind: wire.OpPauseTopic, Flag: true, Topic: t.shared.ID, Partitions: []uint32{uint32(n)}}
	epochs, ok := t.assignedEpochs(op.Partitions)
	if !ok {
		return nil
	}
	return func(ctx context.Context) error {
		op.Known = t.Partitions()
		_, err := t.performIn(ctx, op, epochs)
		return err
	}
}

// EndOf is the state of a copy's log after everything in it.
func EndOf(e *Engine, topic string, n int) segment.State {
	return partitionOf(e, topic, n).State().State
}

// RunAtEnd is where the next batch of a copy lies, if it is small.
func RunAtEnd(e *Engine, topic string, n int) wire.Run {
	st := EndOf(e, topic, n)
	return wire.Run{Segment: st.Segment, Base: st.SegmentBase, Capacity: st.SegmentCapacity}
}

// neverBlocks is a peer.Reading for calls that no connection made.
type neverBlocks struct{}

func (neverBlocks) MayBlock() {}

// Hear lets an engine take a frame of another node, as its connection would bring it.
func Hear(e *Engine, from replicate.NodeID, f *netproto.Frame, body []byte) {
	payload := append(append([]byte(nil), f.Head...), body...)
	e.cluster.Frames(from, uuid.Nil, []netproto.Received{{
		Header: netproto.Header{
			Type: f.Type, Flags: f.Flags, Status: f.Status, Request: f.Request,
			HeadBytes: uint16(len(f.Head)), PayloadBytes: uint32(len(payload)),
		},
		Payload: payload,
	}}, neverBlocks{})
}

// ConfirmBody is the body of a control batch that confirms ids of a channel.
func ConfirmBody(channel string, from, to segment.MsgID) []byte {
	return core.AppendControl(nil, &core.Control{
		Kind: core.Confirmed, Channel: channel, Ranges: []core.IDRange{{From: from, To: to}},
	})
}

// ConfirmedBelow is where the first message is that the fold of a copy does not have as confirmed.
func ConfirmedBelow(e *Engine, topic string, n int, channel string) (below segment.MsgID) {
	for _, c := range partitionOf(e, topic, n).State().Channels {
		if c.Name == channel {
			below = c.Confirmed
		}
	}
	return below
}

// ExchangeOf is the number of the exchange in which a follower learned where its log agrees with its leader's: frames
// of another one go nowhere. Nobody but its leader has to know it.
func ExchangeOf(e *Engine, topic string, n int) uint64 {
	return partitionOf(e, topic, n).State().Exchange
}

// PartitionOf is the name of a partition in the metadata.
func PartitionOf(e *Engine, topic string, n int) segment.Identity {
	t, _ := e.LookupTopic(topic)
	return t.partitions()[n].Identity()
}

// FailFlush does what the flusher does when it meets the damaged head of a segment, and says whether the inbox is
// closed by it.
func FailFlush(e *Engine, topic string, n int) bool {
	t, _ := e.LookupTopic(topic)
	pt := t.partitions()[n]
	for _, s := range pt.Log().Segments() {
		if s.Err != nil && !pt.GivenUp() {
			pt.CloseAndRefuse(ErrDisk, true)
		}
	}
	return pt.WhyClosed() != nil
}

// Tick lets a moment pass for a follower's copy.
func Tick(e *Engine, topic string, n int) {
	t, _ := e.LookupTopic(topic)
	t.partitions()[n].Replica().Tick(e.cluster.Until(), nil)
}

// BeganAnew is how often the log of a copy was begun anew or cut.
func BeganAnew(e *Engine, topic string, n int) uint64 {
	return partitionOf(e, topic, n).State().Logs
}
