package fanout

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/errs"
	"penstock/internal/node/platform"
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
	deleted int // after so many executions the topic is deleted; 0: never
}

func (t *fakeTopic) Deleted() bool { return t.deleted > 0 && len(t.asked) >= t.deleted }

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
	peers := &platform.Peers{Self: 1, Ctx: t.Context()}
	return New(Env{
		Host: platform.NewMachine(), Peers: peers, Timeout: func() time.Duration { return timeout },
		News: new(platform.Notice),
	})
}

// Gather asks for every partition until its leader has done the operation, and not after that. A partition that is
// added meanwhile is included.
func TestGatherRepeatsWhatIsLeft(t *testing.T) {
	topic := &fakeTopic{
		leaders: [][]replicate.NodeID{{1, 0, 1}, {1, 1, 1}, {1, 1, 1, 1}},
		answers: []error{nil, errs.ErrNoLeader, nil},
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
	topic := &fakeTopic{leaders: [][]replicate.NodeID{{1}}, answers: []error{errs.ErrVersion}}
	o := newTestOperations(t, 20*time.Millisecond)
	err := o.OnAllLeaders(t.Context(), topic, wire.Operation{})
	if !errors.Is(err, errs.ErrVersion) || len(topic.asked) != 1 {
		t.Errorf("%v after %d rounds, and another round changes nothing", err, len(topic.asked))
	}
	topic = &fakeTopic{leaders: [][]replicate.NodeID{{0}}}
	if err := o.OnAllLeaders(t.Context(), topic, wire.Operation{}); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("nobody leads: %v", err)
	}
	o.Close()
	if _, err := o.Ask(t.Context(), 2, wire.Operation{}); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("a closed node asks: %v", err)
	}
}

// Nobody leads a deleted topic: Gather says that it is deleted and does not wait for a leader.
func TestGatherOfADeletedTopic(t *testing.T) {
	topic := &fakeTopic{leaders: [][]replicate.NodeID{{1}, {0}}, answers: []error{errs.ErrNoLeader}, deleted: 1}
	err := newTestOperations(t, time.Minute).OnAllLeaders(t.Context(), topic, wire.Operation{})
	if !errors.Is(err, errs.ErrDeleted) || len(topic.asked) != 1 {
		t.Errorf("%v after %d rounds", err, len(topic.asked))
	}
}

// If some leaders do not answer an operation, its error is one sentence that names the partitions and the topic, and
// says what to do.
func TestGatherSaysWhatIsUndone(t *testing.T) {
	topic := &fakeTopic{leaders: [][]replicate.NodeID{{1, 0, 0}}, answers: []error{nil}}
	o := newTestOperations(t, 20*time.Millisecond)
	err := o.OnAllLeaders(t.Context(), topic, wire.Operation{})
	want := "engine: no leader of partitions 1, 2 of topic t answered in time: whether it was done there is not known; " +
		"repeat it when the cluster is healthy"
	if !errors.Is(err, errs.ErrNoLeader) || err.Error() != want {
		t.Errorf("%v", err)
	}
	lost := errors.New("the connection was lost")
	topic = &fakeTopic{leaders: [][]replicate.NodeID{{1}}, answers: []error{lost}}
	err = o.OnAllLeaders(t.Context(), topic, wire.Operation{})
	want = "engine: no leader of partition 0 of topic t answered in time: whether it was done there is not known; " +
		"repeat it when the cluster is healthy (the connection was lost)"
	if !errors.Is(err, lost) || !errors.Is(err, errs.ErrNoLeader) || err.Error() != want {
		t.Errorf("%v", err)
	}
	topic = &fakeTopic{leaders: [][]replicate.NodeID{{0}}}
	err = o.OnAllLeaders(t.Context(), topic, wire.Operation{Kind: wire.OpPeek})
	want = "engine: no leader of partition 0 of topic t answered in time: nothing was changed; repeat it when the " +
		"cluster is healthy"
	if !errors.Is(err, errs.ErrNoLeader) || err.Error() != want {
		t.Errorf("of a look: %v", err)
	}
	many := &undoneError{topic: "t", partitions: undone(make([]bool, 100)), last: errs.ErrNoLeader}
	if got := many.Error(); !strings.Contains(got, "partitions 0, 1, 2, 3, 4, 5, 6, 7, and 92 more of topic t") {
		t.Errorf("%s", got)
	}
}
