package engine

import (
	"strings"
	"testing"
	"time"

	"penstock/clog"
	"penstock/internal/patience"
	"penstock/segment"
	"penstock/segment/aio/faultaio"
)

// A damaged file of the commit log is told once, however often the scrub meets it, and the node is not healthy as long
// as it is there.
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
	release := e.flusher.pinFiles()
	if !disk.Corrupt(name, []byte{data[at] ^ 4}, at) || e.Health() != nil {
		t.Fatal(e.Health())
	}
	told := map[uint64]bool{}
	for range 3 {
		if !e.scrubCommitLog(told) || e.scrubbed.rotten.Load() != 1 ||
			e.Health() == nil || !strings.Contains(e.Health().Error(), "commit log") {
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

// A repair may be faster than the scrub that found the damage: then no range is isolated any more when the scrub looks,
// and it reads the place once more. If it reads back, the damage counts; if it does not, the file as a whole is gone.
func TestScrubFinding(t *testing.T) {
	bad, other := &segment.CorruptError{Detail: "bad"}, &segment.CorruptError{Detail: "other"}
	var f scrubFinding
	if err := f.repaired(0); err != nil {
		t.Errorf("nothing was found, and %v is told", err)
	}
	if !f.again(0, bad) {
		t.Error("the place is not read once more")
	}
	if f.again(0, bad) {
		t.Error("the place is read for ever")
	}
	if !f.again(100, other) {
		t.Error("another place is not read once more")
	}
	if err := f.repaired(100); err != error(other) {
		t.Errorf("%v is told of what reads back", err)
	}
	if err := f.repaired(100); err != nil {
		t.Errorf("told twice: %v", err)
	}
	f.again(100, bad)
	if err := f.repaired(200); err != nil {
		t.Errorf("%v is told of another place", err)
	}
}
