package channel

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/node/clock"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/replicate/wire"
	"penstock/segment"
	"penstock/tests/support/faultaio"
	wait "penstock/tests/support/patience"
)

// handedOver is a batch of control entries that a channel handed to a partition. The test answers it.
type handedOver struct {
	controls []fold.Control
	revoked  *atomic.Bool
	done     func(error)
}

// testPartition is a partition with an empty log. It does not store control entries; it keeps them for the test.
type testPartition struct {
	Partition
	number  uint32
	log     *segment.Log
	batches []handedOver
	end     atomic.Uint64
	came    chan struct{} // a batch was handed over
	refuses error         // what it answers at once; nil: it takes the batch
}

func (p *testPartition) Number() uint32                             { return p.number }
func (p *testPartition) Log() *segment.Log                          { return p.log }
func (p *testPartition) Ends() (committed, unpaused *atomic.Uint64) { return &p.end, &p.end }
func (p *testPartition) Leads() bool                                { return true }

func (p *testPartition) NewControls(revoked *atomic.Bool, _ bool, done func(error)) func([]fold.Control) error {
	return func(controls []fold.Control) error {
		if p.refuses != nil {
			return p.refuses
		}
		p.batches = append(p.batches, handedOver{controls, revoked, done})
		p.came <- struct{}{}
		return nil
	}
}

// testTopic is a topic whose partitions this node leads.
type testTopic struct {
	Topic
	parts   []*testPartition
	written []fold.Control // by WriteControls
}

func (t *testTopic) Name() string                     { return "t" }
func (t *testTopic) ID() uuid.UUID                    { return uuid.UUID{1} }
func (t *testTopic) Count() int                       { return len(t.parts) }
func (t *testTopic) Partition(n int) Partition        { return t.parts[n] }
func (t *testTopic) Unwatch(*Channel, int)            {}
func (t *testTopic) ServesAny() bool                  { return true }
func (t *testTopic) FenceMs(int, segment.Epoch) int64 { return 0 }

func (t *testTopic) WriteControls(_ context.Context, controls []fold.Control) error {
	t.written = append(t.written, controls...)
	return nil
}

// newTestChannel returns a channel with this many partitions, each with two visible, unread messages.
func newTestChannel(t *testing.T, partitions int) (*Channel, *testTopic) {
	t.Helper()
	topic := new(testTopic)
	disk := faultaio.New(faultaio.Options{})
	for n := range uint32(partitions) {
		id := segment.Identity{Topic: topic.ID(), Partition: n}
		log, err := segment.Open(disk, uuid.NewString(), id, segment.State{}, segment.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		p := &testPartition{number: n, log: log, came: make(chan struct{}, 10)}
		p.end.Store(2)
		topic.parts = append(topic.parts, p)
	}
	h := platform.NewMachine()
	var tasks sync.WaitGroup
	node := NewShared(Config{
		Host: h, Log: slog.Default(), Clock: clock.New(h.Wall, h.Mono), Tasks: &tasks, Stop: make(chan struct{}),
		Limits: Limits{MaxRanges: 100, MaxDeferred: 100, MaxDeliveriesAtOne: 100, ReadAheadBytes: 1 << 10},
		Lease:  leased{}, Closing: func() bool { return false }, Context: t.Context,
	})
	c := New(node, topic, "c")
	for n := range topic.parts {
		c.Post(&delivery.Post{Event: delivery.Event{
			Kind: delivery.EvAddPartition, Part: uint32(n), End: 2, Cursor: &fold.Cursor{Name: "c"},
		}})
	}
	c.ApplyPosts()
	t.Cleanup(func() {
		c.Shut(errs.ErrDeleted)
		tasks.Wait()
	})
	return c, topic
}

type discard struct{}

func (discard) Deliver(*message.Delivery) bool { return true }
func (discard) Flush()                         {}
func (discard) Closed(error)                   {}

// Confirmations wait while earlier ones are on their way to the disk. Both would use the same memory, and the outcome
// of the earlier batch would be taken for that of the later one.
func TestConfirmationsWaitForThoseBefore(t *testing.T) {
	c, topic := newTestChannel(t, 1)
	k, err := c.Attach(message.ConsumerOptions{}, discard{}, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Ready(2); err != nil {
		t.Fatal(err)
	}
	// send sends the control entries and says whether some are left that could not be handed over.
	send := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sendControls()
		return c.m.HasControls(0)
	}
	finish := func(id segment.MsgID) {
		t.Helper()
		c.mu.Lock()
		c.ev = delivery.Event{Kind: delivery.EvOffer, Msg: id}
		decision := c.step().Decision
		c.mu.Unlock()
		if decision != delivery.Deliver {
			t.Fatalf("message %d is not delivered: %v", id, decision)
		}
		if err := k.Finish(batch.MakeID(0, id)); err != nil {
			t.Fatal(err)
		}
	}
	p := topic.parts[0]
	finish(0)
	if send() || len(p.batches) != 1 {
		t.Fatal("the first confirmation is not handed over")
	}
	first := slices.Clone(p.batches[0].controls[0].Ranges)
	finish(1)
	if !send() || len(p.batches) != 1 {
		t.Error("the second confirmation is on its way with the first one's memory")
	}
	if !slices.Equal(p.batches[0].controls[0].Ranges, first) {
		t.Errorf("the first confirmation has changed from %v to %v", first, p.batches[0].controls[0].Ranges)
	}
	c.cursors[0].put.onAnswer()
	if send() || len(p.batches) != 2 {
		t.Error("the second confirmation is not handed over when the first was answered")
	}
}

// A Sync notices which deliveries are over by now: clients count on it.
func TestSyncLooksAtTheTime(t *testing.T) {
	c, _ := newTestChannel(t, 1)
	k, err := c.Attach(message.ConsumerOptions{MsgTimeout: time.Millisecond}, discard{}, true)
	if err == nil {
		err = k.Ready(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.ev = delivery.Event{Kind: delivery.EvOffer}
	decision := c.step().Decision
	late := c.node.now().Add(2 * time.Millisecond) // NextDue may be earlier than the message's time
	c.mu.Unlock()
	if decision != delivery.Deliver {
		t.Fatal(decision)
	}
	for c.node.now().Before(late) { // no pump has set the channel's timer
		runtime.Gosched()
	}
	answered := make(chan error)
	k.Sync(func(err error) { answered <- err })
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if err := k.Finish(batch.MakeID(0, 0)); !errors.Is(err, errs.ErrNotInFlight) {
		t.Errorf("after its time and a Sync, its Finish says %v", err)
	}
}

// When the engine closes, a partition that takes nothing more keeps no other partition from storing what is confirmed
// there.
func TestConfirmationsOfOtherPartitionsAtTheEnd(t *testing.T) {
	c, topic := newTestChannel(t, 3)
	k, err := c.Attach(message.ConsumerOptions{}, discard{}, true)
	if err == nil {
		err = k.Ready(3)
	}
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint32(3) {
		c.mu.Lock()
		c.ev = delivery.Event{Kind: delivery.EvOffer, Part: n}
		decision := c.step().Decision
		c.mu.Unlock()
		if err := k.Finish(batch.MakeID(n, 0)); err != nil || decision != delivery.Deliver {
			t.Fatal(decision, err)
		}
	}
	topic.parts[1].refuses = errs.ErrClosed
	c.Shut(errs.ErrClosed)
	for n, want := range []int{1, 0, 1} {
		if got := len(topic.parts[n].batches); got != want {
			t.Errorf("partition %d was given %d batches, want %d", n, got, want)
		}
	}
}

// Two changes of a channel's settings arrive in the wrong order. The later one is in force here, because this node led
// partition 0 when it was made, and the log of another partition has neither. The caller with the earlier one is
// answered only when that log has the settings in force. Otherwise, after a power cut, a leader of that partition alone
// would know no settings at all.
//
// Seed 2549263.
func TestOvertakenSettingsAreWrittenBeforeTheAnswer(t *testing.T) {
	c, topic := newTestChannel(t, 2)
	first := &fold.ChannelSettings{Version: 1, MaxAttempts: 1}
	second := &fold.ChannelSettings{Version: 2, MaxAttempts: 2}
	c.mu.Lock() // the later settings take effect, and are in no log
	c.ev = delivery.Event{Kind: delivery.EvConfigure, Settings: second, PartsAll: 2}
	c.step()
	c.learnSettings()
	c.mu.Unlock()
	op := wire.Operation{Kind: wire.OpConfigure, Settings: first}
	if s, err := c.configure(t.Context(), op); err != nil || s.Version != 2 {
		t.Fatalf("the earlier change was answered with %+v, %v", s, err)
	}
	if w := topic.written; len(w) != 1 || w[0].Settings == nil || !sameSettings(w[0].Settings, second) {
		t.Errorf("before the answer %+v was written into the logs", w)
	}
}

// Control entries that a channel handed over for a partition that it loses must not be stored any more: the next
// channel of its name began without them. Those for a partition that stays are stored.
func TestControlsOfALostPartitionAreRevoked(t *testing.T) {
	c, topic := newTestChannel(t, 2)
	lost, stays := topic.parts[0], topic.parts[1]
	answered := make(chan error, 1)
	go func() {
		_, err := c.Perform(t.Context(), wire.Operation{Kind: wire.OpPauseChannel, Flag: true})
		answered <- err
	}()
	<-lost.came
	<-stays.came
	if !c.Revoke([]bool{false, true}) {
		t.Fatal("the channel keeps no partition")
	}
	if !lost.batches[0].revoked.Load() || stays.batches[0].revoked.Load() {
		t.Errorf("revoked: %v of the partition that is lost, %v of the one that stays",
			lost.batches[0].revoked.Load(), stays.batches[0].revoked.Load())
	}
	lost.batches[0].done(errs.ErrNoLeader)
	stays.batches[0].done(nil)
	if err := <-answered; !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("the pause was answered with %v", err)
	}
}

// patience is how long a test waits for what takes no time.
var patience = wait.Or(20 * time.Second)

// What was finished and was refused by a partition that this node does not lead any more is not stored with what is
// finished later, either. No Sync says so, and none waits for ever.
func TestSyncAfterALostConfirmation(t *testing.T) {
	c, topic := newTestChannel(t, 1)
	k, err := c.Attach(message.ConsumerOptions{}, discard{}, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Ready(2); err != nil {
		t.Fatal(err)
	}
	finish := func(id segment.MsgID) {
		t.Helper()
		if err := k.Finish(batch.MakeID(0, id)); err != nil {
			t.Fatal(err)
		}
	}
	for id := range segment.MsgID(2) {
		c.mu.Lock()
		c.ev = delivery.Event{Kind: delivery.EvOffer, Msg: id}
		c.step()
		c.mu.Unlock()
	}
	p := topic.parts[0]
	p.refuses = errs.ErrNoLeader
	finish(0)
	if err := answered(t, askSync(k)); !errors.Is(err, errs.ErrNoLeader) {
		t.Fatalf("the partition takes no entries, and Sync says %v", err)
	}
	if err := answered(t, askSync(k)); !errors.Is(err, errs.ErrNoLeader) {
		t.Fatalf("the entries are lost, and the next Sync says %v", err)
	}
	if !c.Confirm(func(error) { t.Error("Confirm answers what it did not wait for") }) {
		t.Error("a node that gives its leaderships away waits for entries that are lost")
	}
	p.refuses = nil
	finish(1)
	later := askSync(k)
	c.mu.Lock()
	c.sendControls()
	c.mu.Unlock()
	<-p.came
	p.batches[0].done(nil)
	if err := answered(t, later); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("the second message's confirmation is stored, the first one's is lost, and Sync says %v", err)
	}
}

// askSync calls Sync. The channel holds the answer when there is one.
func askSync(k *Consumer) chan error {
	answer := make(chan error, 1)
	k.Sync(func(err error) { answer <- err })
	return answer
}

// answered waits for the answer of askSync.
func answered(t *testing.T, answer chan error) error {
	t.Helper()
	select {
	case err := <-answer:
		return err
	case <-time.After(patience):
		t.Fatal("Sync is not answered")
		return nil
	}
}

// leased is a lease that lasts.
type leased struct{}

func (leased) Leased() bool             { return true }
func (leased) LeaseLeft() time.Duration { return time.Hour }
func (leased) Now() int64               { return 0 }
func (leased) Lapsed(int64) bool        { return false }
