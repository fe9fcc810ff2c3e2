package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// sealed returns a batch of a producer: its messages are "prefix N", with their numbers.
func sealed(t testing.TB, p node.Producer, prefix string, base, count uint32) []byte {
	t.Helper()
	b := batch.Builder{ProducerID: p.ID, ProducerEpoch: p.Epoch, BaseSequence: base}
	for i := range count {
		if err := b.Add(&segment.Record{Body: fmt.Appendf(nil, "%s %d", prefix, base+i)}); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Seal(1)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// produced is the answer to a ProduceSealed.
type produced struct {
	first  node.ID
	repeat bool
	err    error
}

// send submits a batch to partition 0.
func send(topic *node.Topic, batch []byte) <-chan produced {
	answer := make(chan produced, 2)
	if err := topic.ProduceSealed(node.Sender{}, 0, batch, false, func(a node.Produced) {
		answer <- produced{a.First, a.Duplicate, a.Err}
	}); err != nil {
		answer <- produced{err: err}
	}
	return answer
}

// publishSealed stores a batch in the topic's next partition, through any node.
func publishSealed(ctx context.Context, topic *node.Topic, batch []byte) (node.ID, error) {
	w := inbox.NewWaiter()
	defer w.Free()
	w.Kind, w.Special, w.Alone, w.Waits = inbox.Sealed, &inbox.Special{Sealed: batch}, true, true
	if err := topic.Submit(&w.Put); err != nil {
		return 0, err
	}
	return w.Wait(ctx)
}

func openProducer(t testing.TB, topic *node.Topic, name string) node.Producer {
	t.Helper()
	p, err := topic.OpenProducer(context.Background(), 0, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stored returns the numbers of the messages "prefix N" in the log of t/0, in its order.
func stored(t testing.TB, e *node.Engine, prefix string) (numbers []uint32) {
	t.Helper()
	c, err := node.CopyOf(e, "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Messages(0)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]node.ID, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		var n uint32
		if of, _, _ := strings.Cut(all[id], " "); of == prefix {
			if _, err := fmt.Sscanf(all[id], prefix+" %d", &n); err != nil {
				t.Fatal(err)
			}
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// checkOnce checks that the log has every message of the producer once, in order, from 0 to n-1.
func checkOnce(t testing.TB, e *node.Engine, prefix string, n uint32) {
	t.Helper()
	got := stored(t, e, prefix)
	for i := range max(uint32(len(got)), n) {
		if i >= uint32(len(got)) || got[i] != i {
			t.Fatalf("of %d messages of %s the log has %d; they are not in order at %d: %v",
				n, prefix, len(got), i, got[:min(int(i)+3, len(got))])
		}
	}
}

// A batch is stored once however often it is sent, and with nothing missing before it.
func TestProduceSealed(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	p, other := openProducer(t, topic, "p"), openProducer(t, topic, "")
	if p.ID == 0 || p.ID == other.ID || p.Sequence != 0 || other.Sequence != 0 {
		t.Fatalf("they are %+v and %+v", p, other)
	}
	expect := func(what string, batch []byte, want produced) node.ID {
		t.Helper()
		got := <-send(topic, batch)
		if got.repeat != want.repeat || !errors.Is(got.err, want.err) || want.first != 0 && got.first != want.first {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		return got.first
	}
	first := expect("first", sealed(t, p, "p", 0, 3), produced{})
	expect("another's", sealed(t, other, "o", 0, 1), produced{})
	second := expect("second", sealed(t, p, "p", 3, 1), produced{})
	expect("first again", sealed(t, p, "p", 0, 3), produced{first: first, repeat: true})
	if id, err := publishSealed(t.Context(), topic, sealed(t, p, "p", 3, 1)); id != second || err != nil {
		t.Errorf("published again: %v, %v", id, err)
	}
	expect("gap", sealed(t, p, "p", 5, 1), produced{err: errs.ErrSequence})
	expect("overlap", sealed(t, p, "p", 3, 2), produced{err: errs.ErrSequence})
	expect("unknown", sealed(t, node.Producer{ID: 1, Epoch: 1}, "p", 0, 1), produced{err: errs.ErrUnknownProducer})
	expect("without a producer", sealed(t, node.Producer{}, "n", 0, 1), produced{})
	expect("no batch", []byte("x"), produced{err: segment.ErrInvalid})
	old := p
	if p = openProducer(t, topic, "p"); p.ID != old.ID || p.Epoch != old.Epoch+1 || p.Sequence != 4 {
		t.Errorf("opened again it is %+v, was %+v", p, old)
	}
	expect("fenced", sealed(t, old, "p", 4, 1), produced{err: errs.ErrFenced})
	expect("fenced, again", sealed(t, old, "p", 3, 1), produced{err: errs.ErrFenced})
	third := expect("third", sealed(t, p, "p", 4, 2), produced{})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Crash(3))
	topic = topicOf(t, e, "t")
	expect("again after a restart", sealed(t, p, "p", 4, 2), produced{first: third, repeat: true})
	expect("next after a restart", sealed(t, p, "p", 6, 1), produced{})
	expect("another's after a restart", sealed(t, other, "o", 1, 1), produced{})
	checkOnce(t, e, "p", 7)
	checkOnce(t, e, "o", 2)
	checkOnce(t, e, "n", 1)
}

func TestOpenProducerRefuses(t *testing.T) {
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxLevel = 2 })
	topic := topicOf(t, e, "t")
	if _, err := topic.OpenProducer(t.Context(), 0, "p"); !errors.Is(err, errs.ErrProducerLevel) {
		t.Errorf("at level 2: %v", err)
	}
	got := <-send(topic, sealed(t, node.Producer{ID: 1, Epoch: 1}, "p", 0, 1))
	if !errors.Is(got.err, errs.ErrUnknownProducer) {
		t.Errorf("at level 2: %+v", got)
	}
	e = openOnDisk(t, newDisk())
	topic = topicOf(t, e, "t")
	if _, err := topic.OpenProducer(t.Context(), 0, strings.Repeat("n", 256)); !errors.Is(err, errs.ErrProducerName) {
		t.Errorf("a long name: %v", err)
	}
	for _, n := range []int{-1, 1} {
		if _, err := topic.OpenProducer(t.Context(), n, "p"); !errors.Is(err, errs.ErrNoPartition) {
			t.Errorf("partition %d: %v", n, err)
		}
		err := topic.ProduceSealed(node.Sender{}, n, nil, false, func(node.Produced) {})
		if !errors.Is(err, errs.ErrNoPartition) {
			t.Errorf("partition %d: %v", n, err)
		}
	}
	if got := stored(t, e, "p"); len(got) != 0 {
		t.Errorf("%v are stored", got)
	}
}

// The limit of the state holds for producers, too. But a program that starts again must not be kept from publishing:
// opening a producer that is known adds nothing to the state.
func TestProducersFillTheState(t *testing.T) {
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxStateBytes = 16 << 10 })
	topic := topicOf(t, e, "t")
	named := openProducer(t, topic, "p")
	n := 0
	for ; n < 100; n++ {
		if _, err := topic.OpenProducer(t.Context(), 0, ""); errors.Is(err, errs.ErrStateFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n < 10 || n == 100 {
		t.Errorf("%d producers fill 16 KiB", n)
	}
	if _, err := topic.OpenProducer(t.Context(), 0, "q"); !errors.Is(err, errs.ErrStateFull) {
		t.Errorf("a producer with a new name: %v", err)
	}
	again, err := topic.OpenProducer(t.Context(), 0, "p")
	if err != nil || again.ID != named.ID || again.Epoch != named.Epoch+1 {
		t.Errorf("%+v is opened again: %+v, %v", named, again, err)
	}
}

// A batch that is sent again while it is on its way to the disk gets its answer together with the first one: not
// earlier, and it is not stored again.
func TestRepeatWaitsForTheCommit(t *testing.T) {
	for _, fails := range []bool{false, true} {
		disk := newDisk()
		e := openOnDisk(t, disk)
		topic := topicOf(t, e, "t")
		p := openProducer(t, topic, "p")
		hold := faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1}
		disk.Inject(hold)
		release := func() { disk.ClearRules(); disk.ReleaseHeld() }
		t.Cleanup(release)
		before := node.EndOf(e, "t", 0)
		busy := send(topic, sealed(t, node.Producer{}, "n", 0, 1))
		eventually(t, "a group is on the disk", func() bool { return node.EndOf(e, "t", 0) != before })
		answers := []<-chan produced{}
		for _, base := range []uint32{0, 1, 0, 1, 0} { // they will be in one group
			answers = append(answers, send(topic, sealed(t, p, "p", base, 1)))
		}
		if fails {
			hold.Hold, hold.Err = false, errors.New("broken")
			disk.ClearRules()
			disk.Inject(hold)
		} else {
			disk.ClearRules()
			disk.Inject(hold)
		}
		disk.ReleaseHeld()
		if got := <-busy; got.err != nil {
			t.Fatal(got.err)
		}
		if !fails {
			eventually(t, "both are in the log", func() bool { return len(stored(t, e, "p")) == 2 })
			time.Sleep(20 * time.Millisecond) // an answer would be wrong at any time
			for i, a := range answers {
				select {
				case got := <-a:
					t.Fatalf("batch %d was answered before it is on the disk: %+v", i, got)
				default:
				}
			}
			release()
		}
		var ids [2]node.ID
		for i, a := range answers {
			got := <-a
			if fails {
				if !errors.Is(got.err, errs.ErrDisk) || got.repeat {
					t.Errorf("batch %d: %+v", i, got)
				}
				continue
			}
			if i < 2 {
				ids[i] = got.first
			}
			if got.err != nil || got.repeat != (i > 1) || got.first != ids[i%2] {
				t.Errorf("batch %d: %+v, the first ones have %v", i, got, ids)
			}
		}
		if !fails {
			checkOnce(t, e, "p", 2)
		}
		e.Close()
	}
}

// numberedLog records what producers were told. mu guards the maps.
type numberedLog struct {
	mu    sync.Mutex
	acked map[string]map[uint32]node.ID // by producer and number
	known map[string]uint32             // messages of each producer that must be stored
}

func newNumberedLog() *numberedLog {
	return &numberedLog{acked: map[string]map[uint32]node.ID{}, known: map[string]uint32{}}
}

// note records an answer to a batch.
func (l *numberedLog) note(t testing.TB, name string, base, count uint32, a produced) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked[name] == nil {
		l.acked[name] = map[uint32]node.ID{}
	}
	for i := range count {
		id := a.first + node.ID(i)
		if was, ok := l.acked[name][base+i]; ok && was != id {
			t.Errorf("message %d of %s was answered with the ids %v and %v", base+i, name, was, id)
		}
		l.acked[name][base+i] = id
	}
	l.known[name] = max(l.known[name], base+count)
}

// check compares the log of t/0 with the answers.
func (l *numberedLog) check(t testing.TB, e *node.Engine) {
	t.Helper()
	c, err := node.CopyOf(e, "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Messages(0)
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range l.known {
		checkOnce(t, e, name, max(n, uint32(len(stored(t, e, name)))))
		for number, id := range l.acked[name] {
			if want := fmt.Sprintf("%s %d", name, number); all[id] != want {
				t.Errorf("%s was answered with %v, where %q is", want, id, all[id])
			}
		}
	}
}

// numberedBatch is a batch without a sure answer.
type numberedBatch struct{ base, count uint32 }

// keepProducing opens a producer and sends batches, up to 8 at once, some of them again without need, until an answer
// leaves the outcome open or refuses a batch. open are the batches to begin with: those that an earlier call left. It
// returns those that this call leaves, and the last error.
func keepProducing(
	t testing.TB, topic *node.Topic, l *numberedLog, name string, p node.Producer, open []numberedBatch,
	rng *rand.Rand,
) ([]numberedBatch, error) {
	next := p.Sequence
	if n := len(open); n > 0 {
		next = open[n-1].base + open[n-1].count
	}
	var last []numberedBatch
	for {
		for len(open) < 1+rng.IntN(8) {
			open = append(open, numberedBatch{next, 1 + rng.Uint32N(5)})
			next += open[len(open)-1].count
		}
		again := []numberedBatch{}
		if len(last) > 0 && len(open)+len(last) <= 8 && rng.IntN(3) == 0 {
			again = last
		}
		var answers []<-chan produced
		for _, b := range slices.Concat(again, open) {
			answers = append(answers, send(topic, sealed(t, p, name, b.base, b.count)))
		}
		sent := len(again)
		var failed error
		for i, b := range slices.Concat(again, open) {
			a := <-answers[i]
			switch {
			case a.err != nil && failed == nil:
				failed = a.err
			case a.err == nil:
				l.note(t, name, b.base, b.count, a)
				if i >= sent && failed == nil {
					open = open[1:]
					last = append(last, b)
				} else if i < sent && !a.repeat {
					t.Errorf("batch %+v of %s was stored twice", b, name)
				}
			}
		}
		if failed != nil {
			return open, failed
		}
		last = last[max(0, len(last)-3):]
	}
}

// Power cuts at random operations: whatever a producer sends again after them is stored once, in order, and with the
// ids that it was told. A named producer goes on where the log has it.
//
// B17 (one node), B19, B22, B43.
func TestProducersPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seedCount(t, "TEST_CRASH_SEEDS", 40)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 71))
			disk := faultaio.New(faultaio.Options{Seed: seed})
			l := newNumberedLog()
			anonymous, open := node.Producer{}, []numberedBatch(nil)
			for range 2 + rng.IntN(3) {
				disk.CrashAt(disk.Ops() + 20 + rng.IntN(800))
				anonymous, open = producerLife(t, disk, l, anonymous, open, rng)
				if rng.IntN(4) == 0 {
					disk = disk.Kill(rng.Uint64())
				} else {
					disk = disk.Crash(rng.Uint64())
				}
			}
			e := openOnDisk(t, disk)
			topicOf(t, e, "t")
			l.check(t, e)
		})
	}
}

// producerLife runs two named producers and an anonymous one until the disk's power is cut. It returns the anonymous
// producer and its batches without a sure answer.
func producerLife(
	t *testing.T, disk *faultaio.Disk, l *numberedLog, anonymous node.Producer, open []numberedBatch, rng *rand.Rand,
) (node.Producer, []numberedBatch) {
	e, err := node.Open(ctxBg, smallOptions(disk))
	if err != nil {
		return anonymous, open
	}
	defer e.Close()
	topic, err := e.Topic(ctxBg, "t")
	if err != nil {
		return anonymous, open
	}
	if _, err := topic.Channel(ctxBg, "c"); err != nil { // what nobody confirmed stays
		return anonymous, open
	}
	var wg sync.WaitGroup
	for i := range 2 {
		own := rand.New(rand.NewPCG(rng.Uint64(), 1))
		wg.Go(func() {
			name := fmt.Sprint("p", i)
			p, err := topic.OpenProducer(ctxBg, 0, name)
			if err != nil {
				return
			}
			l.mu.Lock()
			if p.Sequence < l.known[name] {
				t.Errorf("%s goes on at %d; it was told that %d are stored", name, p.Sequence, l.known[name])
			}
			l.known[name] = p.Sequence
			l.mu.Unlock()
			if _, err := keepProducing(t, topic, l, name, p, nil, own); !disk.Crashed() {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	if anonymous.ID == 0 {
		anonymous, err = topic.OpenProducer(ctxBg, 0, "")
	}
	if err == nil {
		if open, err = keepProducing(t, topic, l, "anonymous", anonymous, open, rng); !disk.Crashed() {
			t.Errorf("the anonymous one: %v", err)
		}
	}
	wg.Wait()
	return anonymous, open
}

// Who owns a name outlives a restart, and is in the way of nobody who has to prove nothing.
func TestProducerOwnerSurvives(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ann, bob := node.ProducerOwner("ann"), node.ProducerOwner("bob")
	p, err := topic.OpenProducer(t.Context(), 0, node.OwnedName(ann, "p"))
	if err != nil {
		t.Fatal(err)
	}
	produce := func(owner string, sequence uint32) error {
		done := make(chan error, 1)
		if err := topic.ProduceSealed(node.Sender{Owner: owner}, 0, sealed(t, p, "p", sequence, 1), false,
			func(a node.Produced) { done <- a.Err }); err != nil {
			return err
		}
		return <-done
	}
	for round := range uint32(2) {
		if err := produce(bob, 2*round); !errors.Is(err, errs.ErrProducerOwner) {
			t.Errorf("another's batch: %v", err)
		}
		_, err := topic.OpenProducer(t.Context(), 0, node.OwnedName(bob, "p"))
		if !errors.Is(err, errs.ErrProducerOwner) {
			t.Errorf("opened by another: %v", err)
		}
		if err := errors.Join(produce(ann, 2*round), produce("", 2*round+1)); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		disk = disk.Crash(uint64(round))
		e = openOnDisk(t, disk)
		topic = topicOf(t, e, "t")
	}
	checkOnce(t, e, "p", 4)
	if again, err := topic.OpenProducer(t.Context(), 0, node.OwnedName("", "p")); err != nil || again.ID != p.ID ||
		again.Sequence != 4 {
		t.Errorf("opened without an owner: %+v, %v", again, err)
	}
}

// A name with its owner is as long as a name may be, and two names stay two.
func TestLongOwnedNames(t *testing.T) {
	owner, long := node.ProducerOwner("a"), strings.Repeat("x", fold.MaxProducerNameBytes-1)
	if len(owner) != fold.OwnerBytes || owner[0] != fold.OwnerMark || owner == node.ProducerOwner("b") {
		t.Errorf("the owner is %q", owner)
	}
	for _, name := range []string{long, long + "y", long[:fold.MaxProducerNameBytes-len(owner)]} {
		got := node.OwnedName(owner, name)
		if len(got) > fold.MaxProducerNameBytes || !strings.HasPrefix(got, owner) ||
			string(node.OwnedName(owner, []byte(name))) != got {
			t.Errorf("%d bytes give %q", len(name), got)
		}
	}
	if node.OwnedName(owner, long) == node.OwnedName(owner, long+"y") {
		t.Error("two names are one")
	}
	if node.OwnedName(owner, "") != "" || node.OwnedName("", "p") != "p" {
		t.Error("no name, or no owner")
	}
}
