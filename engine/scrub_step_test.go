package engine

import (
	"strings"
	"testing"
	"time"

	"penstock/clog"
	"penstock/internal/patience"
	"penstock/segment/aio/faultaio"
)

// A damaged file of the commit log is told once, however often the scrub meets it, and the node is not healthy as long as it is there.
func TestScrubTellsOfAFileOnce(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	e := openSmall(t, disk)
	topic, err := e.Topic(t.Context(), "t")
	if err == nil {
		_, err = topic.Publish(t.Context(), []byte("m"))
	}
	name, at := "", int64(0)
	if err == nil {
		err = clog.Scan(disk, func(f clog.FileInfo, g clog.GroupInfo, _ []clog.RecordInfo) error {
			if g.Records > 0 && g.Err == nil {
				name, at = f.Name, g.Offset+clog.GroupHeaderBytes+1
			}
			return nil
		})
	}
	data, readErr := disk.ReadFile(name, 1<<30)
	if err != nil || readErr != nil {
		t.Fatal(err, readErr)
	}
	release := e.flusher.holdFiles()
	if !disk.Corrupt(name, []byte{data[at] ^ 4}, at) || e.Health() != nil {
		t.Fatal(e.Health())
	}
	told := map[uint64]bool{}
	for range 3 {
		if !e.scrubCommitLog(told) || e.scrubbed.rotten.Load() != 1 || e.Health() == nil || !strings.Contains(e.Health().Error(), "commit log") {
			t.Fatalf("told %d times: %v", e.scrubbed.rotten.Load(), e.Health())
		}
	}
	release()
	for end := time.Now().Add(patience.Or(time.Minute)); e.Health() != nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := e.Health(); err != nil {
		t.Fatal(err)
	}
	if e.scrubCommitLog(told); len(told) != 0 || e.scrubbed.rotten.Load() != 1 {
		t.Errorf("files %v are remembered, told %d times", told, e.scrubbed.rotten.Load())
	}
}
