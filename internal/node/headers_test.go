package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/segment"
)

// headers makes a list of alternating names and values.
func headers(kv ...string) (list []node.Header) {
	for i := 0; i < len(kv); i += 2 {
		list = append(list, node.Header{Key: []byte(kv[i]), Value: []byte(kv[i+1])})
	}
	return list
}

func headerText(list []node.Header) string {
	var out []string
	for _, h := range list {
		out = append(out, fmt.Sprintf("%s=%s", h.Key, h.Value))
	}
	return strings.Join(out, ",")
}

// consumeAll finishes n messages of a channel and returns "partition headers" by body.
func consumeAll(t testing.TB, ch *node.Channel, n int) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got := map[string]string{}
	var mu sync.Mutex
	err := ch.Consume(ctx, node.ConsumeOptions{Workers: 3}, func(_ context.Context, m *node.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if _, twice := got[string(m.Body)]; twice {
			t.Errorf("%q came twice", m.Body)
		}
		if got[string(m.Body)] = fmt.Sprint(m.ID.Partition(), " ", headerText(m.Headers)); len(got) == n {
			cancel()
		}
		return nil
	})
	if err != nil || len(got) < n {
		t.Fatalf("%d of %d messages came (%v)", len(got), n, err)
	}
	return got
}

// publishEveryWay publishes messages with headers in each way that the API has, and returns what consumers must get.
func publishEveryWay(t testing.TB, topic *node.Topic, prefix string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	want := map[string]string{}
	at := func(partition int, body string, list string) { want[prefix+body] = fmt.Sprint(partition, " ", list) }
	body := func(s string) []byte { return []byte(prefix + s) }
	check := func(_ node.ID, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(topic.PublishMessage(ctx, node.Outgoing{Body: body("one"), Key: []byte("k1"), Headers: headers("a", "1")}))
	at(topic.PartitionFor([]byte("k1")), "one", "a=1,key=k1")
	check(topic.PublishMessage(ctx, node.Outgoing{Body: body("named"), Headers: headers("b", "", "key", "k2")}))
	at(topic.PartitionFor([]byte("k2")), "named", "b=,key=k2")
	check(topic.PublishMessage(ctx, node.Outgoing{
		Body: body("delayed"), Key: []byte("k3"), Delay: 20 * time.Millisecond,
	}))
	at(topic.PartitionFor([]byte("k3")), "delayed", "key=k3")
	check(topic.PublishMessages(ctx, []node.Outgoing{
		{Body: body("first"), Key: []byte("k4")},
		{Body: body("second")},
		{Body: body("third"), Headers: headers("x", "y", "x", "z"), Key: []byte("k4")},
	}))
	for b, list := range map[string]string{"first": "key=k4", "second": "", "third": "x=y,x=z,key=k4"} {
		at(topic.PartitionFor([]byte("k4")), b, list)
	}
	for n := range topic.Partitions() {
		s := fmt.Sprint("to ", n)
		done := make(chan error, 1)
		p := &node.Put{
			Messages: [][]byte{body(s), body(s + " plain")}, Headers: [][]node.Header{headers("n", fmt.Sprint(n)), nil},
			Done: func(p *node.Put) { done <- p.Err },
		}
		if err := topic.SubmitTo(n, p); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		at(n, s, "n="+fmt.Sprint(n))
		at(n, s+" plain", "")
	}
	return want
}

func checkHeaders(t testing.TB, got, want map[string]string) {
	t.Helper()
	for b, w := range want {
		if got[b] != w {
			t.Errorf("%q came as %q, want %q", b, got[b], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d messages came, want %d", len(got), len(want))
	}
}

// Headers and keys reach consumers as they were published: from memory, after a crash, and from segments.
//
// B61 (what it calls ext), B1.
func TestHeaders(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic, err := e.CreateTopic(t.Context(), "t", 3)
	if err != nil {
		t.Fatal(err)
	}
	channels := []string{"memory", "crash", "segments"}
	for _, name := range channels {
		channelOf(t, topic, name)
	}
	want := publishEveryWay(t, topic, "x/")
	var sb batch.Builder
	sb.Reset(batch.CodecS2)
	sb.Add(&segment.Record{Body: []byte("sealed"), Headers: headers("s", strings.Repeat("long", 1000))})
	sb.Add(&segment.Record{Body: []byte("sealed too")})
	batch, err := sb.Seal(time.Now().UnixNano())
	if err != nil {
		t.Fatal(err)
	}
	before := e.Counters().MessageBytes.Load()
	id, err := publishSealed(t.Context(), topic, batch)
	if err != nil {
		t.Fatal(err)
	}
	if n := e.Counters().MessageBytes.Load() - before; n != uint64(len("sealed")+len("sealed too")) {
		t.Errorf("the sealed messages count as %d bytes", n)
	}
	want["sealed"] = fmt.Sprint(id.Partition(), " s=", strings.Repeat("long", 1000))
	want["sealed too"] = fmt.Sprint(id.Partition(), " ")

	checkHeaders(t, consumeAll(t, channelOf(t, topic, "memory"), len(want)), want)

	e = openOnDisk(t, disk.Crash(1))
	topic, _ = e.Catalog().LookupTopic("t")
	checkHeaders(t, consumeAll(t, channelOf(t, topic, "crash"), len(want)), want)
	for range 800 { // so much that the first messages leave memory
		publish(t, topic, strings.Repeat("m", 4000))
	}
	got := readSome(t, channelOf(t, topic, "segments"), len(want)+800)
	checkHeaders(t, got, want)
}

// readSome is consumeAll, but leaves out the messages that only fill the log: their bodies begin with m.
func readSome(t testing.TB, ch *node.Channel, n int) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got := map[string]string{}
	err := ch.Consume(ctx, node.ConsumeOptions{}, func(_ context.Context, m *node.Message) error {
		if m.Body[0] != 'm' {
			got[string(m.Body)] = fmt.Sprint(m.ID.Partition(), " ", headerText(m.Headers))
		}
		if n--; n == 0 {
			cancel()
		}
		return nil
	})
	if err != nil || n > 0 {
		t.Fatalf("%d messages did not come (%v)", n, err)
	}
	return got
}

// Messages whose headers are not allowed are refused, as a whole and with a sentence that says why; nothing of them is
// stored.
//
// B10, B97 (limits).
func TestHeaderLimits(t *testing.T) {
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxHeaderBytes, o.MaxDefer = 1000, time.Hour })
	topic, err := e.CreateTopic(t.Context(), "t", 2)
	if err != nil {
		t.Fatal(err)
	}
	many := make([]node.Header, message.MaxHeaderCount+1)
	for i := range many {
		many[i] = headers(fmt.Sprint(i), "")[0]
	}
	other := "k0"
	for i := 0; topic.PartitionFor([]byte(other)) == topic.PartitionFor([]byte("k")); i++ {
		other = fmt.Sprint("k", i)
	}
	one := func(o node.Outgoing) []node.Outgoing {
		o.Body = []byte("b")
		return []node.Outgoing{o}
	}
	for _, c := range []struct {
		name string
		ms   []node.Outgoing
		want error
		text string
	}{
		{"too many", one(node.Outgoing{Headers: many}), errs.ErrHeaders, "is 249, and at most 248 is allowed, which no"},
		{"a key makes one too many", one(node.Outgoing{
			Headers: many[:248], Key: []byte("k"),
		}), errs.ErrHeaders, "is 249, and at most 248 is allowed, which no"},
		{"too large", one(node.Outgoing{
			Headers: headers("abc", strings.Repeat("x", 998)),
		}), errs.ErrHeaderBytes, "is 1001, and at most 1000 is allowed: see the node's setting max-header-bytes"},
		{"no name", one(node.Outgoing{Headers: headers("", "x")}), errs.ErrHeaders, "a name is empty"},
		{"long name", one(node.Outgoing{
			Headers: headers(strings.Repeat("n", 257), "x"),
		}), errs.ErrHeaders, "is 257, and at most 256"},
		{"reserved", one(node.Outgoing{Headers: headers("penstock-channel", "c")}), errs.ErrHeaders, "engine's own"},
		{"two keys", one(node.Outgoing{Headers: headers("key", "x"), Key: []byte("k")}), errs.ErrHeaders, "too"},
		{"no body", []node.Outgoing{{Headers: headers("a", "b")}}, errs.ErrEmptyMessage, ""},
		{"keys of two partitions", []node.Outgoing{
			{Body: []byte("b"), Key: []byte("k")},
			{Body: []byte("b"), Key: []byte(other)},
		}, errs.ErrBatchKeys, ""},
		{"two delays", []node.Outgoing{{Body: []byte("b"), Delay: 1}, {Body: []byte("b")}}, errs.ErrBatchKeys, ""},
		{"none", nil, errs.ErrEmptyMessage, ""},
		{"large with headers", []node.Outgoing{
			{Body: make([]byte, 1<<20+1), Headers: headers("a", "b")},
		}, errs.ErrMessageTooBig, "is 1048577, and at most 16384 is allowed: see the node's setting max-message-bytes"},
		{"a delay", []node.Outgoing{
			{Body: []byte("b"), Delay: 2 * time.Hour},
		}, errs.ErrDeferTooLong, "the delay is 2h0m0s, and at most 1h0m0s is allowed: see the node's setting max-defer"},
	} {
		_, err := topic.PublishMessages(t.Context(), c.ms)
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
		}
	}
	p := &node.Put{
		Messages: [][]byte{[]byte("a"), []byte("b")},
		Headers:  make([][]node.Header, 1),
		Done:     func(*node.Put) { t.Error("answered") },
	}
	if err := topic.Submit(p); !errors.Is(err, errs.ErrHeaders) {
		t.Errorf("one list for two messages: %v", err)
	}
	if err := topic.SubmitTo(2, p); !errors.Is(err, errs.ErrNoPartition) {
		t.Errorf("to a partition that is not there: %v", err)
	}
	var sb batch.Builder
	sb.Reset(segment.CodecNone)
	sb.Add(&segment.Record{Body: []byte("x"), Headers: headers("penstock-channel", "c")})
	batch, err := sb.Seal(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publishSealed(t.Context(), topic, batch); !errors.Is(err, errs.ErrHeaders) {
		t.Errorf("a reserved header in a sealed batch: %v", err)
	}
	// Headers of exactly the largest size are stored.
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{
		Body: []byte("b"), Headers: headers("abc", strings.Repeat("x", 997)),
	}); err != nil {
		t.Error(err)
	}
	if n := e.Counters().Messages.Load(); n != 1 {
		t.Errorf("%d messages are stored", n)
	}
}

// The partition of a key is the same for ever, in every client: these values must not change.
func TestPartitionFor(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic, err := e.CreateTopic(t.Context(), "t", 12)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"": 2, "a": 5, "b": 4, "order-1": 2, "order-2": 2, "\x00\xff": 8} {
		if got := topic.PartitionFor([]byte(key)); got != want {
			t.Errorf("the key %q belongs to partition %d, not %d", key, want, got)
		}
	}
	count := make([]int, 12)
	for i := range 12000 {
		count[topic.PartitionFor(fmt.Appendf(nil, "user:%d00", 2*i))]++
	}
	if slices.Min(count) < 850 || slices.Max(count) > 1150 {
		t.Errorf("12000 keys spread as %v", count)
	}
}

// A put with headers costs no allocation either, once pools have grown.
func TestHeadersDoNotAllocate(t *testing.T) {
	e := openWith(t, node.Options{DataPath: fastDir(t), RetentionInterval: time.Hour})
	topic := topicOf(t, e, "t")
	done := make(chan error, 1)
	p := &node.Put{
		Messages: [][]byte{bytes.Repeat([]byte{'x'}, 100)},
		Headers:  [][]node.Header{headers("key", "k", "a", "b")},
	}
	p.Done = func(p *node.Put) { done <- p.Err }
	run := func() {
		if err := topic.Submit(p); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for range 2000 {
		run()
	}
	if n := testing.AllocsPerRun(2000, run); n > 0.1 {
		t.Errorf("%.3f allocations per message with headers", n)
	}
}
