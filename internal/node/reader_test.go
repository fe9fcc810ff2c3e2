package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path"
	"slices"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/segment"
)

// replayed is a message that a Reader returned.
type replayed struct {
	id   node.ID
	body string
}

// openReader opens a reader that is closed at the end of the test.
func openReader(t testing.TB, topic *node.Topic, n int, from node.Start) *node.Reader {
	t.Helper()
	r, err := topic.OpenReader(n, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// meant returns those messages of s that the reader means. It fails on anything but whole batches of messages.
func meant(t testing.TB, s node.Stored) (out []replayed) {
	t.Helper()
	var it segment.BatchIter
	var records segment.RecordIter
	it.Reset(s.Batches)
	for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
		if err := batch.VerifyBody(h, body); err != nil || h.Control() {
			t.Fatalf("a batch with flags %#x: %v", h.Flags, err)
		}
		records.Reset(h, body)
		for id := h.FirstID; id < h.NextID(); id++ {
			r := records.NextRef()
			if r == nil {
				t.Fatal(records.Err())
			}
			if id >= s.Next.MsgID() {
				out = append(out, replayed{batch.MakeID(s.Next.Partition(), id), string(r.Body)})
			}
		}
	}
	if it.Err() != nil || len(out) == 0 {
		t.Fatalf("%d messages, %v", len(out), it.Err())
	}
	return out
}

// replay reads until n messages came, at most max bytes at a time, and checks their ids: they have no gaps, and begin
// at first.
func replay(t testing.TB, r *node.Reader, first node.ID, n, max int) (bodies []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(bodies) < n {
		s, err := r.Next(ctx, max)
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", len(bodies), n, err)
		}
		for _, m := range meant(t, s) {
			if want := first + node.ID(len(bodies)); m.id != want || s.Newest <= m.id {
				t.Fatalf("message %v, newest %v; want %v", m.id, s.Newest, want)
			}
			bodies = append(bodies, m.body)
		}
		s.Release()
	}
	return bodies
}

// awaitEnd waits in Next until it fails, and returns the error.
func awaitEnd(t testing.TB, r *node.Reader) <-chan error {
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func() {
		defer cancel()
		_, err := r.Next(ctx, 1)
		ended <- err
	}()
	return ended
}

// publishInBatches stores n messages in batches, and returns their bodies.
func publishInBatches(t testing.TB, topic *node.Topic, prefix string, n, size int) []string {
	t.Helper()
	all := numbered(prefix, n, size)
	for part := range slices.Chunk(all, 25) {
		var ms [][]byte
		for _, b := range part {
			ms = append(ms, []byte(b))
		}
		if _, err := topic.PublishBatch(t.Context(), ms); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// A reader returns all messages of the past in their order, out of segments and out of memory, whatever the size that
// it asks for, and no control batch. It goes on with what comes, and after a restart of the node at the id that was
// next.
func TestReader(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "keeper")
	ch := channelOf(t, topic, "c")
	var all []string
	for i := range 20 { // confirmations come between the messages
		all = append(all, publishInBatches(t, topic, fmt.Sprintf("m%d-", i), 150, 2000)...)
		if got := readAll(t, ch); len(got) != 150 {
			t.Fatalf("the channel got %d", len(got))
		}
	}
	files, err := disk.ReadDir(path.Join(node.TopicDir(e, "t"), "0"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d segment files, %v", len(files), err)
	}
	for _, max := range []int{-1, 1, 150_000, 1 << 40} {
		r := openReader(t, topic, 0, node.Start{})
		if got := replay(t, r, 0, len(all), max); !slices.Equal(got, all) {
			t.Errorf("%d bytes at a time: %d messages, and they differ", max, len(got))
		}
	}
	r := openReader(t, topic, 0, node.Start{Kind: node.StartAtID, ID: 777})
	if got := replay(t, r, 777, len(all)-777, 3000); !slices.Equal(got, all[777:]) {
		t.Error("from an id: not the messages from there on")
	}
	all = append(all, publishInBatches(t, topic, "more", 60, 10)...)
	if got := replay(t, r, 3000, 60, 3000); !slices.Equal(got, all[3000:]) {
		t.Errorf("then came %q", got)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1))
	topic, _ = e.Catalog().LookupTopic("t")
	all = append(all, publishInBatches(t, topic, "again", 60, 10)...)
	r = openReader(t, topic, 0, node.Start{Kind: node.StartAtID, ID: 1000})
	if got := replay(t, r, 1000, len(all)-1000, 20_000); !slices.Equal(got, all[1000:]) {
		t.Error("after a restart: not the messages from the id on")
	}
}

// A reader that has read everything waits, and is woken by a message. It waits for an id to come, too.
func TestReaderWaits(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	publish(t, topic, "a", "b")
	newest := openReader(t, topic, 0, node.Start{Kind: node.StartNewest})
	later := openReader(t, topic, 0, node.Start{Kind: node.StartAtID, ID: 4})
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := newest.Next(soon, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("at the end: %v", err)
	}
	// Each message is published once the one before was read. So the reader waits for most of them.
	read, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		var err error
		for range read {
			_, perr := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("more")})
			err = errors.Join(err, perr)
		}
		done <- err
	}()
	for i := range 100 {
		read <- struct{}{}
		replay(t, newest, node.ID(2+i), 1, 1)
	}
	close(read)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	replay(t, later, 4, 98, 1)
}

// Readers begin where they are asked to. A place that is not one is refused.
func TestReaderStart(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	_, middle := fillForSeek(t, topic) // m0 to m99, of which m60 was stored after middle
	for name, c := range map[string]struct {
		from node.Start
		want node.ID
	}{
		"oldest":         {node.Start{}, 0},
		"an id":          {node.Start{Kind: node.StartAtID, ID: 33}, 33},
		"the next id":    {node.Start{Kind: node.StartAtID, ID: 100}, 100},
		"a time":         {node.Start{Kind: node.StartAtTime, Time: middle}, 60},
		"a time before":  {node.Start{Kind: node.StartAtTime, Time: middle.Add(-time.Hour)}, 0},
		"a time to come": {node.Start{Kind: node.StartAtTime, Time: middle.Add(time.Hour)}, 100},
		"the year 1500":  {node.Start{Kind: node.StartAtTime, Time: middle.AddDate(-525, 0, 0)}, 0},
		"the year 2500":  {node.Start{Kind: node.StartAtTime, Time: middle.AddDate(475, 0, 0)}, 100},
		"newest":         {node.Start{Kind: node.StartNewest}, 100},
	} {
		r := openReader(t, topic, 0, c.from)
		if next, newest := r.Place(); next != c.want || newest != 100 {
			t.Errorf("%s: the reader is at %v of %v", name, next, newest)
		}
		if c.want == 100 {
			soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := r.Next(soon, 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			continue
		}
		if got := replay(t, r, c.want, 1, 1); got[0] != fmt.Sprintf("m%d", c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	for name, c := range map[string]struct {
		n    int
		from node.Start
		want error
	}{
		"no such partition":       {1, node.Start{}, errs.ErrNoPartition},
		"below 0":                 {-1, node.Start{}, errs.ErrNoPartition},
		"id of another partition": {0, node.Start{Kind: node.StartAtID, ID: batch.MakeID(1, 5)}, errs.ErrStart},
		"no such kind":            {0, node.Start{Kind: 9}, errs.ErrStart},
	} {
		if r, err := topic.OpenReader(c.n, c.from); !errors.Is(err, c.want) || r != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Retention does not wait for a reader, not even for one that holds bytes. A reader whose place is gone says which id
// is the first one there is. The bytes that it holds stay as they are.
func TestReaderTrimmed(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	c := subscribe(t, channelOf(t, topic, "c"), 100)
	all := publishInBatches(t, topic, "m", 2000, 2000)
	r := openReader(t, topic, 0, node.Start{})
	s, err := r.Next(t.Context(), 200_000)
	if err != nil {
		t.Fatal(err)
	}
	c.take(1000)
	var gone *node.TrimmedError
	eventually(t, "what is confirmed is removed", func() bool {
		_, err := topic.OpenReader(0, node.Start{Kind: node.StartAtID, ID: 500})
		return errors.As(err, &gone)
	})
	for i, m := range meant(t, s) {
		if m.body != all[i] {
			t.Fatalf("message %d of what the reader holds is %.20q", i, m.body)
		}
	}
	s.Release()
	for range 2 {
		if _, err := r.Next(t.Context(), 1); !errors.As(err, &gone) || gone.First <= 500 || gone.First > 1000 {
			t.Fatalf("a reader whose place is gone: %v", err)
		}
	}
	r = openReader(t, topic, 0, node.Start{Kind: node.StartAtID, ID: 1000})
	if got := replay(t, r, 1000, 1000, 1<<20); !slices.Equal(got, all[1000:]) {
		t.Error("behind it: not the messages from there on")
	}
}

// A reader that waits learns that it, its topic or the engine has ended.
func TestReaderEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*node.Engine, *node.Reader) error
		want error
	}{
		"the reader is closed": {func(_ *node.Engine, r *node.Reader) error { r.Close(); return nil }, errs.ErrClosed},
		"the topic is deleted": {func(e *node.Engine, _ *node.Reader) error {
			return e.DeleteTopic(ctxBg, "t")
		}, errs.ErrDeleted},
		"the engine is closed": {func(e *node.Engine, _ *node.Reader) error { return e.Close() }, errs.ErrClosed},
	} {
		e := openOnDisk(t, newDisk())
		topic := topicOf(t, e, "t")
		publish(t, topic, "a")
		r := openReader(t, topic, 0, node.Start{})
		replay(t, r, 0, 1, 1)
		ended := awaitEnd(t, r)
		if err := c.end(e, r); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := r.Next(t.Context(), 1); !errors.Is(err, c.want) {
			t.Errorf("%s, again: %v", name, err)
		}
	}
}

// A reader sees only what is committed. It ends when the leadership goes, even if it comes back; the next leader's
// reader goes on at the same id.
func TestClusterReader(t *testing.T) {
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	leader := tc.leader("t", 0)
	other := tc.others(leader)[0]
	for i := range 10 {
		tc.publishIn("t", 0, fmt.Sprintf("m%d", i))
	}
	if _, err := tc.topic(other, "t").OpenReader(0, node.Start{}); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("at a follower: %v", err)
	}
	topic := tc.topic(leader, "t")
	r := openReader(t, topic, 0, node.Start{})
	if got := replay(t, r, 0, 10, 1<<20); !slices.Equal(got, numbered("m", 10, 0)) {
		t.Errorf("%q came", got)
	}
	heal := tc.withoutAcks()
	done := make(chan error, 1)
	p := &node.Put{Messages: [][]byte{[]byte("m10")}, Done: func(p *node.Put) { done <- p.Err }}
	if err := topic.SubmitTo(0, p); err != nil {
		t.Fatal(err)
	}
	tc.eventually("it is in the log", func() bool {
		c, err := node.CopyOf(leader.e, "t", 0)
		return err == nil && bytes.Contains(c.Bytes, []byte("m10"))
	})
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Next(soon, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("of what is not committed: %v", err)
	}
	heal()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	replay(t, r, 10, 1, 1)
	ended := awaitEnd(t, r)
	tc.moveLeadership("t", 0, other)
	if err := <-ended; !errors.Is(err, errs.ErrNoLeader) {
		t.Fatalf("when the leadership goes: %v", err)
	}
	tc.publishIn("t", 0, "m11")
	next := openReader(t, tc.topic(other, "t"), 0, node.Start{Kind: node.StartAtID, ID: 3})
	if got := replay(t, next, 3, 9, 1<<20); !slices.Equal(got, numbered("m", 12, 0)[3:]) {
		t.Errorf("at the next leader %q came", got)
	}
	tc.moveLeadership("t", 0, leader)
	if _, err := r.Next(t.Context(), 1); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("when it is back: %v", err)
	}
	again := openReader(t, topic, 0, node.Start{Kind: node.StartNewest})
	ended = awaitEnd(t, again)
	if err := node.EngineOf(tc.topic(other, "t")).DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, errs.ErrDeleted) {
		t.Errorf("when the topic is deleted: %v", err)
	}
}

// Reading the past costs no memory per call.
func TestReaderAllocates(t *testing.T) {
	if slower > 1 {
		t.Skip("the race detector empties pools")
	}
	o := inDir(t.TempDir())
	o.MinSegmentBytes, o.MaxSegmentBytes = 8<<20, 8<<20 // to open a segment allocates
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "keeper")
	publishInBatches(t, topic, "m", 8000, 1000)
	n := math.Inf(1)
	for range 3 { // what else allocates in this process while it reads is counted, too
		r := openReader(t, topic, 0, node.Start{})
		n = min(n, testing.AllocsPerRun(100, func() {
			s, err := r.Next(ctxBg, 60_000)
			if err != nil {
				t.Fatal(err)
			}
			s.Release()
		}))
	}
	if n >= 1 {
		t.Errorf("%v allocations for one call", n)
	}
}

// BenchmarkReader reads messages of 100 bytes out of segments, which the page cache has. B/s counts their bodies.
func BenchmarkReader(b *testing.B) {
	const count = 1_000_000
	e := openWith(b, node.Options{
		DataPath: b.TempDir(), BufferBytes: 16 << 20, Logger: slog.New(slog.DiscardHandler), // little stays in memory
	})
	topic := topicOf(b, e, "t")
	ms := make([][]byte, 500)
	for i := range ms {
		ms[i] = bytes.Repeat([]byte{'x'}, 100)
	}
	for range count / len(ms) {
		if _, err := topic.PublishBatch(b.Context(), ms); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(count * 100)
	b.ResetTimer()
	for range b.N {
		r := openReader(b, topic, 0, node.Start{})
		for next := node.ID(0); next < count; {
			s, err := r.Next(b.Context(), 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			var h segment.Header
			for p := s.Batches; len(p) > 0; p = p[h.Size():] {
				if err := h.Decode(p); err != nil {
					b.Fatal(err)
				}
				next = node.ID(h.NextID())
			}
			s.Release()
		}
		r.Close()
	}
	b.ReportMetric(float64(b.N)*count/b.Elapsed().Seconds(), "messages/s")
}
