package node_test

import (
	"testing"
	"time"

	"penstock/internal/node"
)

// After a restart, a deferred message with a tag still goes only to the consumers of its tag.
func TestTagAfterRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := openWith(t, inDir(dir))
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	red := subscribe(t, ch, 1, node.ConsumerOptions{Tag: "red"})
	publishWith(t, topicOf(t, e, "t"), "m", "tag", "red")
	m := red.next()
	if err := red.Requeue(m.id, 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openWith(t, inDir(dir))
	ch = channelOf(t, topicOf(t, e, "t"), "c")
	red = subscribe(t, ch, 1, node.ConsumerOptions{Tag: "red"})
	all := subscribe(t, ch, 1)
	if again := red.next(); again.id != m.id || again.attempts != 2 {
		t.Errorf("%+v", again)
	}
	all.expectNothing("a consumer of the tag is there")
}

// The same at the next leader, also for a message that was published with a delay.
func TestClusterTagAfterFailover(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	c := tc.channel("t", "c")
	red := subscribe(t, c, 10, node.ConsumerOptions{Tag: "red"})
	publishWith(t, tc.topic(l, "t"), "requeued", "tag", "red")
	m := red.next()
	if err := red.Requeue(m.id, time.Second); err != nil {
		t.Fatal(err)
	}
	out := node.Outgoing{
		Body:    []byte("delayed"),
		Headers: []node.Header{{Key: []byte("tag"), Value: []byte("red")}},
		Delay:   time.Second,
	}
	if _, err := tc.topic(l, "t").PublishMessage(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	waitConfirmed(t, tc, "t")
	tc.kill(l)
	c = tc.channelAt(tc.leader("t", 0), "t", "c")
	red = subscribe(t, c, 1, node.ConsumerOptions{Tag: "red"}) // the second one waits for it
	all := subscribe(t, c, 10)
	first, second := "", ""
	for _, body := range []*string{&first, &second} {
		got := red.next()
		*body = got.body
		red.finish(got)
	}
	if first == second {
		t.Errorf("%s came twice", first)
	}
	all.expectNothing("a consumer of the tag is there")
}
