package node_test

import (
	"context"
	"maps"
	"testing"

	"penstock/internal/node"
)

// Headers and keys reach consumers as they were published, through whichever node: forwarded to the leader, replicated
// byte by byte, and read from the next leader when the first one has ended.
//
// B1, B61, B94.
func TestClusterHeaders(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.channel("t", "now")
	tc.channel("t", "later")
	want := map[string]string{}
	for _, m := range tc.nodes {
		maps.Copy(want, publishEveryWay(t, tc.topic(m, "t"), m.name+"/"))
	}
	for n := range 3 {
		tc.awaitEqualCopies("t", n)
	}
	tc.consumeAtLeaders("now", want)
	tc.kill(tc.leader("t", 0))
	tc.consumeAtLeaders("later", want)
}

// consumeAtLeaders reads a channel of topic t at every leader of a partition, until all of want has come.
func (tc *testCluster) consumeAtLeaders(channel string, want map[string]string) {
	tc.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type message struct{ body, headers string }
	messages := make(chan message, len(want))
	for n := range 3 { // a node that leads two of them is asked twice, which does no harm
		c, err := tc.topic(tc.leader("t", n), "t").Channel(ctx, channel)
		if err != nil {
			tc.t.Fatal(err)
		}
		go func() {
			_ = c.Consume(ctx, node.ConsumeOptions{}, func(ctx context.Context, m *node.Message) error {
				select {
				case messages <- message{string(m.Body), string('0'+rune(m.ID.Partition())) + " " + headerText(m.Headers)}:
				case <-ctx.Done():
				}
				return nil
			})
		}()
	}
	got := map[string]string{}
	for len(got) < len(want) {
		select {
		case m := <-messages:
			got[m.body] = m.headers
		case <-ctx.Done():
			tc.t.Fatalf("%d of %d messages came", len(got), len(want))
		}
	}
	checkHeaders(tc.t, got, want)
}
