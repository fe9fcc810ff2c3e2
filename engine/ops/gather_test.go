package ops

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/host"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// fakeTopic has partitions that this node leads (1) or that nobody leads (0). Each execution returns the next of
// answers.
type fakeTopic struct {
	leaders [][]replicate.NodeID // of each round; the last one stays
	answers []error              // of each execution; the last one stays
	asked   [][]uint32           // the partitions of each execution
	known   []int
}

func (t *fakeTopic) ID() uuid.UUID { return uuid.UUID{1} }
func (t *fakeTopic) Name() string  { return "t" }

func (t *fakeTopic) Leaders() []replicate.NodeID {
	now := t.leaders[0]
	if len(t.leaders) > 1 {
		t.leaders = t.leaders[1:]
	}
	return now
}

func (t *fakeTopic) Execute(_ context.Context, op wire.Operation) ([]byte, error) {
	t.asked, t.known = append(t.asked, slices.Clone(op.Partitions)), append(t.known, op.Known)
	err := t.answers[0]
	if len(t.answers) > 1 {
		t.answers = t.answers[1:]
	}
	return []byte("x"), err
}

func newTestOperations(t *testing.T, timeout time.Duration) *Operations {
	peers := &host.Peers{Self: 1, Ctx: t.Context()}
	return New(Node{Host: host.NewMachine(), Peers: peers, Timeout: timeout, News: new(base.Notice)})
}

// Gather asks for every partition until its leader has done the operation, and not after that. A partition that is
// added meanwhile is included.
func TestGatherRepeatsWhatIsLeft(t *testing.T) {
	topic := &fakeTopic{
		leaders: [][]replicate.NodeID{{1, 0, 1}, {1, 1, 1}, {1, 1, 1, 1}},
		answers: []error{nil, base.ErrNoLeader, nil},
	}
	results := 0
	only := func(n uint32) bool { return n != 2 }
	err := newTestOperations(t, time.Minute).Gather(t.Context(), topic, wire.Operation{}, only,
		func([]byte) error { results++; return nil })
	want := [][]uint32{{0}, {1}, {1, 3}}
	if err != nil || results != 2 || !slices.EqualFunc(topic.asked, want, slices.Equal[[]uint32]) {
		t.Errorf("%v: %d results, asked for %v, want %v", err, results, topic.asked, want)
	}
	if !slices.Equal(topic.known, []int{3, 3, 4}) {
		t.Errorf("the requester says that it knows of %v partitions", topic.known)
	}
}

func TestGatherEnds(t *testing.T) {
	topic := &fakeTopic{leaders: [][]replicate.NodeID{{1}}, answers: []error{base.ErrVersion}}
	o := newTestOperations(t, 20*time.Millisecond)
	err := o.OnAllLeaders(t.Context(), topic, wire.Operation{})
	if !errors.Is(err, base.ErrVersion) || len(topic.asked) != 1 {
		t.Errorf("%v after %d rounds, and another round changes nothing", err, len(topic.asked))
	}
	topic = &fakeTopic{leaders: [][]replicate.NodeID{{0}}}
	if err := o.OnAllLeaders(t.Context(), topic, wire.Operation{}); !errors.Is(err, base.ErrNoLeader) {
		t.Errorf("nobody leads: %v", err)
	}
	o.Close()
	if _, err := o.Ask(t.Context(), 2, wire.Operation{}); !errors.Is(err, base.ErrClosed) {
		t.Errorf("a closed node asks: %v", err)
	}
}
