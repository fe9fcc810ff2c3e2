package offline

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/node/aside"
	"penstock/segment"
	"penstock/segment/aio"
)

// keepAside adds what a cut took from a copy of a topic's partition 0 to a data directory.
func keepAside(t *testing.T, dir string, id segment.Identity) string {
	t.Helper()
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	must(err)
	defer disk.Close()
	log, err := segment.Open(disk, "unused", id, segment.State{}, segment.Options{})
	must(err)
	defer log.Close()
	arena, err := aio.NewArena(1<<20, 1)
	must(err)
	buf := arena.Get()
	defer buf.Release()
	var st segment.State
	for free := buf.Bytes(); st.Next < 10; {
		var b batch.Builder
		b.Reset(batch.CodecNone)
		must(b.Add(&segment.Record{Body: make([]byte, 100)}))
		p, err := b.Seal(1)
		must(err)
		batch.Stamp(p, st.Next, st.NextID, 1, 1, st.LastCRC)
		var h segment.Header
		must(h.Decode(p))
		segment.DefaultSizes.Place(&st, len(p))
		k := copy(free, p)
		log.Append(&segment.Slice{
			Buf: buf, Data: free[:k:k], Position: h.Position, FirstID: h.FirstID, Count: 1, Appended: 1, Offset: st.End,
			SegmentBase: st.SegmentBase, SegmentCapacity: st.SegmentCapacity, FileSeq: 1,
		})
		st.Advance(&h)
		free = free[k:]
	}
	keep := aside.New(disk, slog.New(slog.DiscardHandler), time.Now, aside.DefaultLimits)
	e, err := keep.Keep(log, aside.Cut{
		TopicID: id.Topic, Topic: "orders", Until: st.Next, NextID: st.NextID,
	}, 0, st.End)
	must(err)
	return e.Name
}

// fsck lists what cuts took, and finds damage in it.
func TestAside(t *testing.T) {
	dir := dataDir(t)
	name := keepAside(t, dir, segment.Identity{Topic: uuid.UUID{7}})
	r, err := check(dir)
	must(err)
	if r.FindingCount != 0 || len(r.Aside) != 1 || r.Aside[0].ID != name || r.Aside[0].Messages != 10 {
		t.Fatalf("%+v, %+v", r.Aside, r.Findings)
	}
	must(os.Mkdir(filepath.Join(dir, "aside", "segments-"+name), 0o700))
	if r, err = check(dir); err != nil || r.FindingCount != 0 || len(r.Aside) != 1 {
		t.Errorf("with segments aside: %+v, %+v, %v", r.Aside, r.Findings, err)
	}
	var out strings.Builder
	must(r.print(&out))
	if !strings.Contains(out.String(), "a cut took 10 messages from topic orders, partition 0, positions 0 to 9") {
		t.Errorf("it says %s", &out)
	}
	for file, at := range map[string]int64{"batches": 500, "cut.json": 30} {
		undo := flip(t, filepath.Join(dir, "aside", name, file), at, 0)
		r, err := check(dir)
		undo()
		if must(err); r.FindingCount != 1 || !strings.HasSuffix(r.Findings[0].Path, name+"/"+file) {
			t.Errorf("%s: %+v", file, r.Findings)
		}
	}
	must(os.Remove(filepath.Join(dir, "aside", name, "cut.json")))
	if r, err = check(dir); err != nil || r.FindingCount != 0 || !r.Aside[0].Unfinished {
		t.Errorf("without cut.json: %+v, %+v, %v", r.Aside, r.Findings, err)
	}
}
