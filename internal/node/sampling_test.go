package node_test

import (
	"testing"

	"penstock/internal/node"
)

// B62: a channel that samples gets its share of the messages, and another channel gets all of them.
func TestSampling(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	part, all := channelOf(t, topic, "part"), channelOf(t, topic, "all")
	const n = 2000
	batch := make([][]byte, n)
	for i := range batch {
		batch[i] = []byte("m")
	}
	if _, err := topic.PublishBatch(ctxBg, batch); err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, part, n, node.ConsumerOptions{SampleRate: 30})
	count := 0
	eventually(t, "what was sampled away does not wait", func() bool {
		for m, ok := s.poll(0); ok; m, ok = s.poll(0) {
			s.finish(m)
			count++
		}
		st := channelStats(t, part)
		return st.Depth == 0 && st.InFlightCount == 0
	})
	if count < n*20/100 || count > n*40/100 {
		t.Errorf("%d of %d messages with a sample rate of 30", count, n)
	}
	if got := readAll(t, all); len(got) != n {
		t.Errorf("the other channel got %d of %d", len(got), n)
	}
}
