package native

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// Credit that is spent must be paid back before more is sent; it never exceeds its bound.
func TestCredit(t *testing.T) {
	var c credit
	for i, x := range []struct {
		give  uint32
		spend int
		chunk int
	}{
		{0, 0, 0},
		{100, 0, 100},
		{0, 40, 60},
		{0, 5000, 0},
		{4940, 0, 0},
		{1, 0, 1},
		{math.MaxUint32, 0, readChunkBytes},
		{math.MaxUint32, wire.MaxCreditBytes - 7, 7},
	} {
		c.give(x.give)
		c.spend(x.spend)
		if got := c.chunk(); got != x.chunk {
			t.Errorf("step %d: %d bytes may be read, want %d", i, got, x.chunk)
		}
	}
}

// reader is a client's end of a reader.
type reader struct {
	*client
	request uint64
	next    uint64 // the id that must come next; 0: any
	bytes   int    // of batches that have come
}

func (c *client) read(m *wire.Read) *reader {
	c.t.Helper()
	return &reader{client: c, request: c.send(wire.TypeRead, m)}
}

// records receives a Records and returns the bodies of its messages that are meant.
func (r *reader) records() (bodies []string) {
	r.t.Helper()
	f := r.answer()
	var head wire.Records
	if f.Type != wire.TypeRecords || f.Request != r.request || f.Flags&netproto.FlagSelfChecked == 0 {
		r.t.Fatalf("%v %v for request %d: %q", f.Type, f.Status, f.Request, f.payload)
	}
	if err := wire.Decode(f.payload, &head); err != nil {
		r.t.Fatal(err)
	}
	if r.next != 0 && head.Next != r.next {
		r.t.Fatalf("the records go on at %d, want %d", head.Next, r.next)
	}
	batches := f.payload[f.CheckedBytes():]
	r.bytes += len(batches)
	r.next = head.Next
	var it batch.BatchIter
	it.Reset(batches)
	for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
		if err := batch.VerifyBody(h, body); err != nil {
			r.t.Fatal(err)
		}
		records, err := batch.DecompressBody(h, body, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		var rec batch.RecordIter
		rec.Reset(h, records)
		for id := uint64(h.FirstID); ; id++ {
			m := rec.NextRef()
			if m == nil {
				break
			}
			if id >= r.next {
				bodies = append(bodies, string(m.Body))
				r.next = id + 1
			}
		}
	}
	if err := it.Err(); err != nil || r.next > head.Newest {
		r.t.Fatalf("%v; next %d, newest %d", err, r.next, head.Newest)
	}
	return bodies
}

// expect receives records until these messages have come.
func (r *reader) expect(want ...string) {
	r.t.Helper()
	for len(want) > 0 {
		for _, got := range r.records() {
			if len(want) == 0 || got != want[0] {
				r.t.Fatalf("%q came, want %q", got, want)
			}
			want = want[1:]
		}
	}
}

// stock makes a topic with a channel, so that its messages stay, and n messages "N".
func stock(t testing.TB, w *world, n int) (*node.Topic, []node.ID) {
	t.Helper()
	topic, err := w.e.CreateTopic(t.Context(), "orders", 1)
	if err == nil {
		_, err = topic.Channel(t.Context(), "c")
	}
	if err != nil {
		t.Fatal(err)
	}
	var ids []node.ID
	for i := range n {
		id, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: fmt.Append(nil, i)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return topic, ids
}

func numbers(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// A reader begins where it is told to, and goes on with what is published.
func TestRead(t *testing.T) {
	w := open(t, nil)
	topic, ids := stock(t, w, 20)
	c := w.dial()
	all := c.read(&wire.Read{Topic: topic.ID(), From: wire.FromOldest, Credit: 1 << 20})
	all.expect(numbers(0, 20)...)
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("20")}); err != nil {
		t.Fatal(err)
	}
	all.expect("20")
	c.send(wire.TypeReadEnd, new(wire.Outcome))
	for name, x := range map[string]struct {
		from  wire.From
		value int64
		want  []string
	}{
		"id":     {wire.FromID, int64(ids[7]), numbers(7, 21)},
		"time":   {wire.FromTime, 0, numbers(0, 21)},
		"newest": {wire.FromNewest, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.dial()
			c.t = t
			r := c.read(&wire.Read{Topic: topic.ID(), From: x.from, Value: x.value, Credit: 1 << 20})
			r.expect(x.want...)
		})
	}
}

// A reader that has nothing to read yet is told so at once, and then goes on.
func TestReadOfNothing(t *testing.T) {
	w := open(t, nil)
	topic, ids := stock(t, w, 3)
	end := uint64(ids[2]) + 1
	for name, from := range map[string]wire.From{"newest": wire.FromNewest, "id": wire.FromID} {
		t.Run(name, func(t *testing.T) {
			c := w.dial()
			c.t = t
			r := c.read(&wire.Read{Topic: topic.ID(), From: from, Value: int64(end), Credit: 1 << 20})
			if got := r.records(); len(got) != 0 || r.next != end || r.bytes != 0 {
				t.Fatalf("%q of %d bytes, next %d, want %d", got, r.bytes, r.next, end)
			}
			if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte(name)}); err != nil {
				t.Fatal(err)
			}
			r.expect(name)
			end++
		})
	}
}

// No more is sent than the client has credit for, but for the last batch; credit lets it go on; an end ends it.
func TestReadCredit(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 100)
	c := w.dial()
	r := c.read(&wire.Read{Topic: topic.ID(), From: wire.FromOldest, Credit: 1})
	got := 0
	for given := 1; got < 100; {
		got += len(r.records())
		if largest := 1 << 10; r.bytes > given+largest {
			t.Fatalf("%d bytes came for a credit of %d", r.bytes, given)
		}
		c.c.Send(t.Context(), &netproto.Frame{
			Type: wire.TypeReadCredit, Request: r.request, Head: wire.Append(nil, &wire.ReadCredit{Bytes: 500}),
		})
		given += 500
	}
	end := &netproto.Frame{Type: wire.TypeReadEnd, Request: r.request, Head: wire.Append(nil, new(wire.Outcome))}
	if err := c.c.TrySend(end); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the reader", func() bool { return w.s.readers.Used() == 0 })
	if err := c.c.TrySend(end); err != nil { // a reader that has ended is no error
		t.Fatal(err)
	}
	c.ask(false, "orders")
}

// Why a leader ends a reader, and what it refuses.
func TestReadEnds(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnReaders, o.MaxReaders = 3, 4 })
	topic, _ := stock(t, w, 1)
	c := w.dial()
	for name, x := range map[string]struct {
		m      wire.Read
		status netproto.Status
	}{
		"an unknown topic":     {wire.Read{Topic: uuid.UUID{1}}, netproto.StatusNotLeader},
		"an unknown partition": {wire.Read{Topic: topic.ID(), Partition: 1}, netproto.StatusNotLeader},
		"the last partition":   {wire.Read{Topic: topic.ID(), Partition: math.MaxUint32}, netproto.StatusNotLeader},
		"an id elsewhere": {
			wire.Read{Topic: topic.ID(), From: wire.FromID, Value: math.MinInt64}, netproto.StatusRejected,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			x.m.Credit = 1
			c.refusal(c.send(wire.TypeRead, &x.m), wire.TypeReadEnd, x.status)
		})
	}
	c.t = t
	newest := &wire.Read{Topic: topic.ID(), From: wire.FromNewest, Credit: 100}
	twice := w.dial()
	for range 2 {
		f := &netproto.Frame{Type: wire.TypeRead, Request: 1, Head: wire.Append(nil, newest)}
		_ = twice.c.TrySend(f)
	}
	twice.end()
	eventually(t, "no reader", func() bool { return w.s.readers.Used() == 0 })
	for range 3 {
		c.read(newest).records()
	}
	c.refusal(c.send(wire.TypeRead, newest), wire.TypeReadEnd, netproto.StatusFull)
	other := w.dialFrom("127.0.0.2")
	other.read(newest).records()
	eventually(t, "all readers", func() bool { return w.s.readers.Used() == 4 })
	other.refusal(other.send(wire.TypeRead, newest), wire.TypeReadEnd, netproto.StatusFull)
	if err := w.e.DeleteTopic(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if f := c.answer(); f.Type != wire.TypeReadEnd || f.Status != netproto.StatusNotLeader {
			t.Errorf("after the topic was deleted: %v %v", f.Type, f.Status)
		}
	}
	eventually(t, "no reader", func() bool { return w.s.readers.Used() == 0 })
}

// Reading needs the permission to subscribe, for as long as it lasts.
func TestReadNeedsPermission(t *testing.T) {
	grants := map[string]string{
		"shop": mayPublish, "audit": `permissions = ["subscribe"]` + "\n" + `topics = ["orders"]`,
		"some": `permissions = ["subscribe", "admin"]` + "\n" + `topics = ["orders"]` + "\n" + `channels = ["mail"]`,
	}
	authority, file := tokens(t, grants)
	w := open(t, func(o *Options) { o.Auth = authority })
	topic, _ := stock(t, w, 2)
	m := &wire.Read{Topic: topic.ID(), From: wire.FromOldest, Credit: 1 << 20}
	shop, reads := w.dial(), w.dial()
	shop.login("shop")
	shop.refusal(shop.send(wire.TypeRead, m), wire.TypeReadEnd, netproto.StatusUnproven)
	some := w.dial()
	some.login("some") // a reader gets the messages of all channels
	some.refusal(some.send(wire.TypeRead, m), wire.TypeReadEnd, netproto.StatusUnproven)
	reads.login("audit")
	r := reads.read(m)
	r.expect("0", "1")
	delete(grants, "audit")
	writeTokens(t, file, grants)
	if err := authority.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("secret")}); err != nil {
		t.Fatal(err)
	}
	reads.refusal(r.request, wire.TypeReadEnd, netproto.StatusUnproven)
}

// A client that does not read what it has credit for holds a bounded part of the node, and others read.
func TestReaderThatDoesNotRead(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnOutputBytes, o.MaxPinnedBytes = 256<<10, 64<<10 })
	topic, _ := stock(t, w, 0)
	body := make([]byte, 64<<10)
	for range 400 {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	deaf := &client{t: t, frames: make(chan frame, 1<<16), gate: make(chan struct{}), ended: make(chan error, 1)}
	m := &wire.Read{Topic: topic.ID(), From: wire.FromOldest, Credit: math.MaxUint32}
	connect := func(c *client) {
		t.Helper()
		made, err := w.try(func(o *netproto.Options) { o.Handler, o.SilenceTimeout = c, time.Hour })
		if err != nil {
			t.Fatal(err)
		}
		c.c = made.c
	}
	connect(deaf)
	deaf.send(wire.TypeRead, m)
	good := w.dial()
	r := good.read(m)
	for n := 0; n < 400; {
		n += len(r.records())
		// A client that says nothing for 5 s, either, loses its connection.
		if err := deaf.c.TrySend(&netproto.Frame{
			Type: wire.TypeReadCredit, Request: 1, Head: wire.Append(nil, new(wire.ReadCredit)),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.s.pinned.Load(); n > 64<<10 {
		t.Errorf("%d bytes are pinned", n)
	}
	close(deaf.gate)
	slow := &reader{client: deaf, request: 1}
	for n := 0; n < 400; { // nothing is lost, and nothing comes twice
		n += len(slow.records())
	}
	eventually(t, "room is given back", func() bool { return w.s.output.Used() == 0 })
	if n := w.s.pinned.Load(); n != 0 {
		t.Errorf("%d bytes are pinned", n)
	}
}

// A reader whose connection ends before it was started leaves nothing.
func TestReadThatWasNotStarted(t *testing.T) {
	w := open(t, nil)
	c := w.dial()
	eventually(t, "the session", func() bool { return len(w.s.all()) == 1 })
	x := w.s.all()[0]
	x.mu.Lock()
	x.serving = true // the test has the turn, so nobody serves requests
	x.mu.Unlock()
	for range 3 {
		c.send(wire.TypeRead, &wire.Read{Credit: 1})
	}
	eventually(t, "the readers are registered", func() bool { return w.s.readers.Used() == 3 })
	c.c.Abort(nil)
	eventually(t, "the end of the connection", func() bool { return w.s.Meter().Connections == 0 })
	eventually(t, "nothing is left", func() bool { return w.s.readers.Used() == 0 && w.s.inFlight.Used() == 0 })
}

// Readers that share less room than each of them could use get everything all the same.
func TestReadersThatShareRoom(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnOutputBytes, o.MaxOutputBytes = 100<<10, 100<<10 })
	topic, _ := stock(t, w, 0)
	body := make([]byte, 60<<10)
	for range 100 {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	var all []*reader
	for range 8 {
		m := &wire.Read{Topic: topic.ID(), From: wire.FromOldest, Credit: math.MaxUint32}
		all = append(all, w.dial().read(m))
	}
	for _, r := range all {
		for n := 0; n < 100; {
			n += len(r.records())
		}
	}
}
