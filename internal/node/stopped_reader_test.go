package node_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/segment"
)

// A channel stops before damage that nobody can repair. When retention has removed the damaged segment, the channel
// goes on where the log now begins, although nothing else happens in the topic.
//
// B37, B67.
func TestStoppedReaderGoesOnWhenRetentionRemovesTheDamage(t *testing.T) {
	disk, ids := closedDirectory(t, 300)
	files := segmentFiles(t, disk, "bad")
	if len(files) < 4 || !disk.Corrupt(files[1], []byte("rotten"), segment.SegmentHeaderBytes+20_000) {
		t.Fatalf("no damage in one of %d segments", len(files))
	}
	var log logged
	e := openOnDisk(t, disk, func(o *node.Options) { o.Logger = log.logger() })
	bad := topicOf(t, e, "bad")
	s := subscribe(t, channelOf(t, bad, "c"), 1000)
	eventually(t, "the channel stops", func() bool { return strings.Contains(log.String(), "a channel stops reading") })
	before := 0
	for m, ok := s.poll(0); ok; m, ok = s.poll(0) {
		s.finish(m)
		before++
	}
	if before == 0 || before > 100 {
		t.Fatalf("%d messages came before the damage", before)
	}
	configure(t, bad, func(s *meta.TopicSettings) { s.RetentionBytes = 150_000 })
	more := topicOf(t, e, "more")
	eventually(t, "retention removes the damage", func() bool {
		publish(t, more, numbered("x", 50, 3000)...) // the commit log has to move on first
		return !slices.Contains(segmentFiles(t, disk, "bad"), files[1])
	})
	var last node.ID
	for m, ok := s.poll(patience); ok; m, ok = s.poll(time.Second) {
		if last == 0 && m.id <= ids[before] {
			t.Errorf("it goes on with %s, which is damaged", m.id)
		}
		last = m.id
		s.finish(m)
		if last == ids[len(ids)-1] {
			return
		}
	}
	t.Errorf("the last message that came is %s, not %s", last, ids[len(ids)-1])
}
