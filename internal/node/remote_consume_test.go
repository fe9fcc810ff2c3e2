package node_test

import (
	"context"
	"errors"
	"testing"

	"penstock/internal/node"
)

// Consume works in the same way at a node that leads no partition. On a single node, and at a leader, Subscribe is
// Attach.
func TestRemoteConsume(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	p, leaders := tc.nodeWithoutLeadership()
	c, err := tc.topic(p, "t").Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	publish(t, tc.topic(p, "t"), numbered("m", 500, 0)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := map[string]bool{}
	err = c.Consume(ctx, node.ConsumeOptions{RequeueDelay: -1}, func(_ context.Context, m *node.Message) error {
		if m.Attempts == 1 && m.Body[len(m.Body)-1] == '7' {
			return errors.New("once more")
		}
		if got[string(m.Body)] = true; len(got) == 500 {
			cancel()
		}
		return nil
	})
	if err != nil || len(got) != 500 {
		t.Errorf("%d messages, %v", len(got), err)
	}
	at := tc.subscribeAt(leaders[0], "t", "d", 3)
	if n := len(channelStats(t, tc.channelAt(leaders[0], "t", "d")).Consumers); n != 1 {
		t.Errorf("the leader has %d consumers", n)
	}
	at.Close()
}

// On a single node Subscribe is Attach.
func TestSubscribeAlone(t *testing.T) {
	e := open(t, t.TempDir())
	defer e.Close()
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	g := &remoteTestClient{testClient: &testClient{t: t, came: make(chan struct{}, 1)}}
	k, err := c.SubscribeClient(t.Context(), node.ConsumerOptions{}, g)
	if err != nil {
		t.Fatal(err)
	}
	g.Consumer = k
	if err := k.Ready(5); err != nil {
		t.Fatal(err)
	}
	publish(t, topic, "m")
	k.Pump()
	g.finish(g.next())
	if st := channelStats(t, c); len(st.Consumers) != 1 || st.Consumers[0].FinishCount != 1 {
		t.Errorf("%+v", st)
	}
}
