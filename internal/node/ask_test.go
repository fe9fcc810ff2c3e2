package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// A node asks another one, and itself; the answer is bounded, and without an answerer there is none.
func TestAskNode(t *testing.T) {
	c := newTestCluster(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	asker, asked := c.nodes[0], c.nodes[1]
	id := asked.e.Node().ID
	c.eventually("they are connected", func() bool { return asker.e.View().Connected[id] })
	_, err := asker.e.AskNode(ctx, id, []byte(`{}`))
	if err == nil || !strings.Contains(err.Error(), "answers no questions") {
		t.Errorf("without an answerer: %v", err)
	}
	failure := errors.New("no such thing")
	asked.e.OnQuestion(func(_ context.Context, q []byte) ([]byte, error) {
		switch string(q) {
		case `"long"`:
			return make([]byte, node.MaxAnswerBytes+1), nil
		case `"bad"`:
			return nil, failure
		}
		return append([]byte(`{"you":`), append(q, '}')...), nil
	})
	for _, e := range []*node.Engine{asker.e, asked.e} {
		if a, err := e.AskNode(ctx, id, []byte(`"hello"`)); err != nil || string(a) != `{"you":"hello"}` {
			t.Errorf("%s, %v", a, err)
		}
		if _, err := e.AskNode(ctx, id, []byte(`"bad"`)); err == nil || !strings.Contains(err.Error(), failure.Error()) {
			t.Errorf("a failure: %v", err)
		}
		if _, err := e.AskNode(ctx, id, []byte(`"long"`)); err == nil || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("a long answer: %v", err)
		}
	}
}
