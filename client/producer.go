package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"penstock/batch"
)

// messageRoomBytes is what a message takes of MaxBufferedBytes beside its own bytes.
const messageRoomBytes = 64

var keyHeader = []byte(KeyHeader)

// Producer publishes messages to a topic. It may be used by any number of goroutines; messages of one goroutine to one
// partition are stored in the order in which it produced them.
type Producer struct {
	client *Client
	topic  string
	id     uuid.UUID
	o      ProducerOptions
	room   *semaphore.Weighted
	turn   atomic.Uint32 // the partition of messages without a key
	lanes  atomic.Pointer[[]*lane]

	closed atomic.Bool
	mu     sync.Mutex // guards changes of lanes and of closed, and the fields below
	tenure uint64     // for which the program holds the name: lanes open it for this
	fenced bool       // a later program has opened the name at some partition: this one ends at all
}

// Producer opens a producer of a topic, which is created if it does not exist and the client may do so. It waits for
// the topic until ctx ends. With a name, the producer is opened at every partition before Producer returns;
// afterwards older programs with that name get ErrFenced. The producer outlives ctx: Close ends it.
func (c *Client) Producer(ctx context.Context, topicName string, options ProducerOptions) (*Producer, error) {
	o, err := options.withDefaults()
	if err == nil {
		err = checkName("topic", topicName)
	}
	if err == nil && o.Name != "" {
		err = checkName("producer", o.Name)
	}
	if err != nil {
		return nil, err
	}
	if err := c.view.want(topicName, true); err != nil {
		return nil, err
	}
	t, err := c.view.topic(ctx, topicName, true)
	if err != nil {
		c.view.unwant(topicName, true)
		return nil, err
	}
	p := &Producer{
		client: c, topic: topicName, id: t.id, o: o, room: semaphore.NewWeighted(int64(o.MaxBufferedBytes)),
	}
	p.lanes.Store(new([]*lane))
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.view.unwant(topicName, true)
		return nil, ErrClosed
	}
	c.producers[p] = struct{}{}
	c.mu.Unlock()
	if o.Name == "" {
		return p, nil
	}
	if err := p.takeName(ctx, len(t.leaders)); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// maxTakes bounds how often a producer takes its name before it ends, because programs that start at the same time may
// take it from each other.
const maxTakes = 3

// takeName opens the producer at all partitions for one tenure. If a partition knows a later one, the program before
// had a clock that was ahead, or another one starts at the same time: then takeName tries one above that.
func (p *Producer) takeName(ctx context.Context, partitions int) error {
	p.tenure = batch.NewTenure(time.Now().UnixMilli(), rand.Uint64())
	for try := 1; ; try++ {
		err := p.openAll(ctx, partitions)
		var held *heldError
		if !errors.As(err, &held) || held.tenure < p.tenure || try == maxTakes {
			return err
		}
		for _, l := range p.dropLanes() {
			l.stop()
			<-l.ended
		}
		p.mu.Lock()
		p.tenure = batch.TenureAbove(held.tenure, rand.Uint64())
		p.mu.Unlock()
	}
}

// openAll opens the producer at all partitions, and waits for the answers. Of several errors it returns the one of the
// latest tenure.
func (p *Producer) openAll(ctx context.Context, partitions int) error {
	for i := range partitions {
		if _, err := p.lane(i); err != nil && !errors.Is(err, ErrFenced) {
			return err
		}
	}
	var failed error
	var latest uint64
	for _, l := range *p.lanes.Load() {
		err := l.awaitOpen(ctx)
		var held *heldError
		if errors.As(err, &held) && held.tenure > latest {
			failed, latest = err, held.tenure
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// dropLanes returns the lanes, and leaves the producer without.
func (p *Producer) dropLanes() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fenced = false
	return slices.DeleteFunc(*p.lanes.Swap(new([]*lane)), func(l *lane) bool { return l == nil })
}

// fence ends the producer at all partitions, because at that of l a later program has opened its name.
func (p *Producer) fence(l *lane) {
	p.mu.Lock()
	lanes := *p.lanes.Load()
	p.fenced = p.fenced || slices.Contains(lanes, l)
	if !p.fenced {
		lanes = nil // the lanes were dropped
	}
	p.mu.Unlock()
	for _, other := range lanes {
		if other != nil && other != l {
			other.fence()
		}
	}
}

// fence ends the lane.
func (l *lane) fence() {
	l.mu.Lock()
	l.flow.end(ErrFenced)
	l.mu.Unlock()
	l.wake()
}

func (l *lane) awaitOpen(ctx context.Context) error {
	select {
	case <-l.opened:
		return l.openErr
	case <-ctx.Done():
		return because(because(ErrNoLeader, context.Cause(ctx)), l.producer.client.view.failure())
	}
}

// lane returns the lane of a partition, and starts it if it is new.
func (p *Producer) lane(partition int) (*lane, error) {
	if lanes := *p.lanes.Load(); partition < len(lanes) && lanes[partition] != nil {
		return lanes[partition], nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil, ErrClosed
	}
	old := *p.lanes.Load()
	if partition < len(old) && old[partition] != nil {
		return old[partition], nil
	}
	if p.fenced {
		return nil, ErrFenced
	}
	lanes := make([]*lane, max(len(old), partition+1))
	copy(lanes, old)
	lanes[partition] = newLane(p, partition)
	p.lanes.Store(&lanes)
	return lanes[partition], nil
}

// Topic is the name of the producer's topic.
func (p *Producer) Topic() string { return p.topic }

// Partitions is how many partitions the topic has, as far as the client knows. The number may grow, never shrink.
func (p *Producer) Partitions() int {
	if t := p.client.view.known.Load().topics[p.topic]; t != nil {
		return len(t.leaders)
	}
	return 0
}

// PartitionOf returns the partition of a key in a topic with n partitions, 1 or more: see [batch.PartitionOf].
func PartitionOf(key []byte, n int) int { return batch.PartitionOf(key, n) }

// choose returns the partition of a message.
func (p *Producer) choose(m *Message) (int, error) {
	t := p.client.view.known.Load().topics[p.topic]
	switch {
	case t != nil && len(t.leaders) > 0 && t.id != p.id:
		return 0, topicRemade(p.topic)
	case t != nil && len(t.leaders) > 0:
	case t != nil && meaning(t.status) == verdictRefused:
		return 0, topicRefused(t.status, p.topic)
	default:
		return 0, ErrNoTopic
	}
	n := len(t.leaders)
	if p.o.Partition != nil {
		at := p.o.Partition(m, n)
		if at >= 0 && at < n {
			return at, nil
		}
		return 0, because(ErrRefused, fmt.Errorf("partition %d was chosen, and topic %s has %d, counted from 0", at,
			p.topic, n))
	}
	if m.Key != nil {
		return PartitionOf(m.Key, n), nil
	}
	turn := p.turn.Load()
	at := int(turn % uint32(n))
	for range n {
		if t.leaders[at] != "" {
			break
		}
		at = (at + 1) % n
	}
	if uint32(at) != turn {
		p.turn.CompareAndSwap(turn, uint32(at))
	}
	return at, nil
}

// check says whether the message keeps the limits, and how much room it takes.
func (p *Producer) check(m *Message) (room int64, err error) {
	count, size := len(m.Headers), batch.MaxRecordOverheadBytes+len(m.Body)+messageRoomBytes
	if m.Key != nil {
		count, size = count+1, size+len(KeyHeader)+len(m.Key)+2*batch.MaxRecordOverheadBytes
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		size += len(h.Key) + len(h.Value) + 2*batch.MaxRecordOverheadBytes
		name := string(h.Key)
		switch {
		case name == "" || len(name) > MaxHeaderNameBytes:
			return 0, because(ErrRefused, fmt.Errorf("a header's name has %d bytes, 1 to %d are allowed", len(name),
				MaxHeaderNameBytes))
		case strings.HasPrefix(name, ReservedHeaders):
			return 0, because(ErrRefused, fmt.Errorf("only nodes write headers that begin with %q", ReservedHeaders))
		}
	}
	if len(m.Body) == 0 { // the node would refuse the messages that share its batch, too
		return 0, because(ErrRefused, errors.New("a message's body has at least one byte"))
	}
	if count > MaxHeaderCount {
		return 0, because(ErrRefused, fmt.Errorf("it has %d headers, at most %d are allowed", count, MaxHeaderCount))
	}
	if most := min(batch.MaxBatchBytes-batch.HeaderBytes, p.o.MaxBufferedBytes); size > most {
		return 0, because(ErrTooLarge, fmt.Errorf("it takes %d bytes with its headers, and at most %d are allowed (a "+
			"batch has at most %d, and MaxBufferedBytes is %d)", size, most, batch.MaxBatchBytes, p.o.MaxBufferedBytes))
	}
	return int64(size), nil
}

// Produce takes a message. It waits for room within MaxBufferedBytes until ctx ends, and not for the message to be
// stored; when ctx ends later, that changes nothing.
//
// done is called once: with the message's id once it is on stable storage on every replica that must have it, else
// with an error that says what became of it (see ErrUnknown). It may be nil. For messages that were taken, done is
// called on a goroutine of the producer, in the order in which the messages of a partition were produced. For a
// message that was not taken (ErrTooLarge, ErrRefused, ErrFenced, ErrClosed, ErrNoTopic, or ErrBuffered because ctx
// ended), Produce calls done before it returns. done must not block, because later messages of the partition wait for
// it; it may call TryProduce.
//
// The bytes of the message are copied: key, headers and body may be used again when Produce returns, and m when done
// was called. Produce allocates no memory for a message.
func (p *Producer) Produce(ctx context.Context, m *Message, done func(*Message, ID, error)) {
	if err := p.produce(ctx, true, m, done, nil); err != nil && done != nil {
		done(m, 0, err)
	}
}

// TryProduce is Produce, but does not wait for room: done gets ErrBuffered if there is none.
func (p *Producer) TryProduce(m *Message, done func(*Message, ID, error)) {
	if err := p.produce(context.Background(), false, m, done, nil); err != nil && done != nil {
		done(m, 0, err)
	}
}

// produce takes a message. call is the call of ProduceSync that waits for it. If call is nil, done is a function of the
// application, and may have run already when produce returns.
func (p *Producer) produce(
	ctx context.Context, wait bool, m *Message, done func(*Message, ID, error), call *syncCall,
) error {
	if p.closed.Load() {
		return ErrClosed
	}
	room, err := p.check(m)
	if err != nil {
		return err
	}
	if !p.room.TryAcquire(room) {
		if !wait {
			return ErrBuffered
		}
		if p.room.Acquire(ctx, room) != nil {
			return because(ErrBuffered, context.Cause(ctx))
		}
	}
	var l *lane
	at, err := p.choose(m)
	if err == nil {
		l, err = p.lane(at)
	}
	if err == nil && !l.produce(ctx, m, done, room, call) {
		err = l.fate()
	}
	if err == nil {
		return nil
	}
	p.room.Release(room)
	if p.closed.Load() {
		return ErrClosed // whatever Close has ended meanwhile, and choose or the lane said of that
	}
	return err
}

// fate is why the lane takes no messages.
func (l *lane) fate() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.flow.ended, ErrClosed)
}

// LastSequence is the sequence number of the newest message that this producer, or an earlier one with the same name,
// has stored at the partition, as far as is known. Each message's number is one above the number of the message before
// it; the first is 0, and 0 follows 2^32-1. ok is false if nothing was stored, or the producer is not open there.
//
// A program that produces a list of messages with a name, to one partition, can so go on after a crash where it ended,
// and stores each message once.
func (p *Producer) LastSequence(partition int) (sequence uint32, ok bool) {
	lanes := *p.lanes.Load()
	if partition < 0 || partition >= len(lanes) || lanes[partition] == nil {
		return 0, false
	}
	l := lanes[partition]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flow.stored - 1, l.flow.stored != 0
}

// Flush sends what waits for Linger, and waits until every message was told that was produced before. If ctx ends
// first, or has ended already, Flush returns an error that matches ctx's and says how many messages have no answer. The
// producer goes on with them all the same, and their done functions say what became of them. A done function must not
// call Flush.
func (p *Producer) Flush(ctx context.Context) error {
	var all []pendingFlush
	for _, l := range *p.lanes.Load() {
		if l != nil {
			all = append(all, l.flush())
		}
	}
	for i, f := range all {
		select {
		case <-f.done:
			continue
		default:
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return unanswered(ctx, all[i:])
		}
	}
	return nil
}

// unanswered returns the error of a Flush whose ctx has ended, or nil if every message was answered meanwhile.
func unanswered(ctx context.Context, all []pendingFlush) error {
	n := uint64(0)
	for _, f := range all {
		n += f.untold()
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("client: %d messages have no answer yet; the producer goes on with them, and their done functions "+
		"say what becomes of them: %w", n, context.Cause(ctx))
}

// Close takes no more messages and waits until every message was told. If ctx ends before that, or has ended already,
// the producer ends all the same: messages without an answer are told as ErrUnknown if they were sent, and as ErrClosed
// if not. Then Close returns an error that matches ctx's and says how many messages these are. It matches ErrUnknown if
// some may be stored, and ErrClosed if some are certainly not. LastSequence still says what is stored as far as is
// known. A done function must not call Close.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed.Store(true)
	p.mu.Unlock()
	err := p.Flush(ctx)
	left := p.stop()
	if err == nil || left == (abandoned{}) { // if the last answers came between the two
		return nil
	}
	return &closedEarlyError{abandoned: left, cause: context.Cause(ctx)}
}

// abandoned is how many messages had no answer when their lanes were stopped.
type abandoned struct {
	unknown int // sent: they may be stored
	unsent  int // they never will be stored
}

// closedEarlyError is Close's error if its context has ended before every message was told.
type closedEarlyError struct {
	abandoned
	cause error
}

func (e *closedEarlyError) Error() string {
	return fmt.Sprintf("client: the producer was closed before every message had an answer; %d may be stored, or may "+
		"still be, and %d were not stored: look for the former before you produce them again: %v", e.unknown, e.unsent,
		e.cause)
}

func (e *closedEarlyError) Is(target error) bool {
	return target == ErrUnknown && e.unknown > 0 || target == ErrClosed && e.unsent > 0
}

func (e *closedEarlyError) Unwrap() error { return e.cause }

// stop ends all lanes and waits for their goroutines. It returns what that has left open.
func (p *Producer) stop() (left abandoned) {
	p.mu.Lock()
	p.closed.Store(true)
	lanes := *p.lanes.Load()
	p.mu.Unlock()
	for _, l := range lanes {
		if l != nil {
			n := l.stop()
			left.unknown += n.unknown
			left.unsent += n.unsent
		}
	}
	for _, l := range lanes {
		if l != nil {
			<-l.ended
		}
	}
	c := p.client
	c.mu.Lock()
	_, mine := c.producers[p]
	delete(c.producers, p)
	c.mu.Unlock()
	if mine {
		c.view.unwant(p.topic, true)
	}
	return left
}
