package node_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// smallFiles makes the state of channels soon larger than the commit log's files.
func smallFiles(o *node.Options) {
	o.CommitFileBytes, o.CommitLiveBytes = 256<<10, 1<<20
	o.MinSegmentBytes, o.MaxSegmentBytes = 512<<10, 4<<20
}

// deferInBulk stores the messages from one number to another, which are due in an hour, and makes every channel defer
// as many others.
func deferInBulk(t *testing.T, topic *node.Topic, from, to int, channels ...*node.Channel) {
	t.Helper()
	const delay = time.Hour
	for i := from; i < to; i += 100 {
		later, now := make([]node.Outgoing, 100), make([]node.Outgoing, 100)
		for j := range later {
			later[j] = node.Outgoing{Body: fmt.Appendf(nil, "published later %d", i+j), Delay: delay}
			now[j] = node.Outgoing{Body: fmt.Appendf(nil, "put off %d", i+j)}
		}
		_, err := topic.PublishMessages(ctxBg, later)
		if _, err2 := topic.PublishMessages(ctxBg, now); errors.Join(err, err2) != nil {
			t.Fatal(errors.Join(err, err2))
		}
	}
	for _, ch := range channels {
		s := subscribe(t, ch, to-from)
		for range to - from {
			if err := s.Requeue(s.next().id, delay); err != nil {
				t.Fatal(err)
			}
		}
		s.Pump()
		logConfirms(t, ch)
		s.Close()
	}
}

// takesAll reads n messages from a channel and checks that they are n different ones.
func takesAll(t *testing.T, ch *node.Channel, n int) {
	t.Helper()
	s := subscribe(t, ch, 2500)
	bodies := map[string]bool{}
	for _, body := range s.take(n) {
		bodies[body] = true
	}
	if len(bodies) != n {
		t.Errorf("channel %s got %d of %d messages", ch.Name(), len(bodies), n)
	}
}

func largestCommitFile(t *testing.T, o node.Options) (largest int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(o.DataPath, "clog", "*.clog"))
	for _, name := range files {
		st, serr := os.Stat(name)
		if err = errors.Join(err, serr); err != nil {
			t.Fatal(err)
		}
		largest = max(largest, st.Size())
	}
	return largest
}

// The deferred messages of channels take more than a commit log file, and more than an ordinary record of such a log
// may have. The files grow, and a restart finds everything.
//
// B43, B50, B51, B70
func TestStateLargerThanFiles(t *testing.T) {
	t.Parallel()
	var clock skew
	o := inDir(t.TempDir())
	smallFiles(&o)
	node.SetWallClock(&o, clock.now)
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	count := 10_000
	if testing.Short() {
		count = 3_000
	}
	a, b := channelOf(t, topic, "a"), channelOf(t, topic, "b")
	deferInBulk(t, topic, 0, count, a, b)
	for ; largestCommitFile(t, o) <= o.CommitFileBytes; count += 200 { // no file began since the state is that large
		if count > 20_000 {
			t.Fatalf("the state of %d messages did not outgrow a file", count)
		}
		deferInBulk(t, topic, count, count+200, a, b)
	}
	if err := e.Health(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // recovery of recovery, and a file that begins with this state each time
		if i == 2 {
			clock.set(2 * time.Hour) // the last restart is when the messages are due
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e = openWith(t, o)
		topic = topicOf(t, e, "t")
	}
	publish(t, topic, "on")
	for _, name := range []string{"a", "b"} {
		takesAll(t, channelOf(t, topic, name), 2*count+1)
	}
}

// The same in a cluster: the followers' logs grow as well, and everything survives a failover and a restart of all
// nodes.
//
// B50, B51, B68
func TestClusterStateLargerThanFiles(t *testing.T) {
	t.Parallel()
	var clock skew
	tc := newTestCluster(t, 3, smallFiles, func(o *node.Options) { node.SetWallClock(o, clock.now) })
	tc.create("t", 1)
	l := tc.leader("t", 0)
	c := tc.channel("t", "c")
	count := 10_000
	if testing.Short() {
		count = 3_000
	}
	deferInBulk(t, tc.topic(l, "t"), 0, count, c)
	tc.kill(l)
	publish(t, tc.topic(tc.leader("t", 0), "t"), "on")
	for _, m := range tc.running() {
		tc.kill(m)
	}
	clock.set(2 * time.Hour) // all are due
	tc.startAll()
	l = tc.leader("t", 0)
	takesAll(t, tc.channelAt(l, "t", "c"), 2*count+1)
}

// A follower whose limit is smaller than its leader's takes what the leader stores: it dies of nothing, and says by how
// much it is over its limit. When it leads, it refuses delayed messages, and everything else goes on.
func TestClusterFollowerOverItsLimit(t *testing.T) {
	t.Parallel()
	const small, count = 200_000, 3_000
	tc := newTestCluster(t, 3, func(o *node.Options) {
		if o.NodeID == "n3" {
			o.MaxStateBytes = small
		}
	})
	tc.create("t", 3)
	large, follower := tc.nodes[0], tc.nodes[2]
	n := tc.leaders("t")[large]
	tc.channel("t", "c")
	later := func(m *testNode) error {
		put := &node.Put{Messages: [][]byte{[]byte("later")}, Defer: time.Hour}
		return node.PutTo(t.Context(), tc.topic(m, "t"), n, put)
	}
	for range count {
		if err := later(large); err != nil {
			t.Fatalf("the leader is below its own limit: %v", err)
		}
	}
	tc.eventually("the follower has them", func() bool { return node.DelaysIn(follower.e, "t", n) == count })
	named := func(m *testNode) bool {
		warned := slices.ContainsFunc(m.e.Warnings(), func(f node.Fault) bool { return f.Name == "state_over_limit_bytes" })
		s, v := m.e.Storage(), m.e.Verdict()
		counted := slices.ContainsFunc(s.Faults(), func(f node.Fault) bool { return f.Name == "state_over_limit_bytes" })
		if noted := strings.Contains(v.Health, "max-state-bytes of this node"); warned != counted || noted != warned {
			t.Fatalf("warnings %v, faults %v, note %v: %s", warned, counted, noted, v.Health)
		}
		return warned
	}
	if !named(follower) || named(large) {
		t.Errorf("over its limit: %s %v, %s %v", follower.name, named(follower), large.name, named(large))
	}
	tc.awaitInSync("t")
	tc.moveLeadership("t", n, follower)
	if err := later(follower); !errors.Is(err, errs.ErrStateFull) {
		t.Errorf("a delayed message at a leader over its limit: %v", err)
	}
	now := &node.Put{Messages: [][]byte{[]byte("now")}}
	if err := node.PutTo(t.Context(), tc.topic(follower, "t"), n, now); err != nil {
		t.Errorf("a plain message there: %v", err)
	}
	if err := follower.e.Health(); err != nil {
		t.Error(err)
	}
}

// The last line of defence: at MaxStateBytes no further message is deferred and no channel is made. Everything else
// goes on, and finished messages make room.
func TestStateFull(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.MaxStateBytes = 300_000 })
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s := subscribe(t, ch, 1)
	var err error
	n := 0
	for ; err == nil && n < 5000; n++ {
		_, err = topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour})
	}
	over, ok := errors.AsType[*errs.LimitError](err)
	if !errors.Is(err, errs.ErrStateFull) || n < 1000 || !ok || over.Most != int64(300_000) ||
		over.Setting != "max-state-bytes" || over.Value.(int64) <= 300_000 {
		t.Fatalf("after %d deferred messages: %v", n, err)
	}
	publish(t, topic, "now")
	m := s.next()
	if err := s.Requeue(m.id, time.Hour); !errors.Is(err, errs.ErrStateFull) {
		t.Errorf("a requeue with a delay: %v", err)
	}
	if err := s.Requeue(m.id, 0); err != nil {
		t.Errorf("a requeue without: %v", err)
	}
	s.Pump()
	if m = s.next(); m.body != "now" {
		t.Errorf("%q came again", m.body)
	}
	s.finish(m)
	if _, err := topic.Channel(ctxBg, "d"); !errors.Is(err, errs.ErrStateFull) {
		t.Errorf("a new channel: %v", err)
	}
	channelOf(t, topic, "e#ephemeral") // nothing of it is in the log
	if err := e.Health(); err != nil {
		t.Error(err)
	}

	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1), func(o *node.Options) { o.MaxStateBytes = 300_000 })
	topic = topicOf(t, e, "t")
	if _, err := topic.PublishMessage(ctxBg, node.Outgoing{
		Body: []byte("later"), Delay: time.Hour,
	}); !errors.Is(err, errs.ErrStateFull) {
		t.Errorf("after a restart: %v", err)
	}
	if err := channelOf(t, topic, "c").Empty(ctxBg); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour}); err != nil {
		t.Errorf("the channel was emptied: %v", err)
	}
	channelOf(t, topic, "d")
}

// The state of a partition has to fit into a batch, with which each of its segments begins. Before it grows beyond
// that, no further message is deferred, long before the node's limit. Segments begin and end as usual.
func TestPartitionStateFull(t *testing.T) {
	t.Parallel()
	e := openWith(t, node.Options{
		DataPath: t.TempDir(), Logger: slog.New(slog.DiscardHandler), MaxSegmentBytes: 32 << 20,
		PublishTimeout: patience, // the disk may have other work
		MaxStateBytes:  1 << 30,
	})
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	var err error
	n := 0
	for ms := make([]node.Outgoing, 10_000); err == nil; n += len(ms) {
		for j := range ms {
			ms[j] = node.Outgoing{Body: []byte("x"), Delay: time.Hour}
		}
		_, err = topic.PublishMessages(ctxBg, ms)
	}
	over, ok := errors.AsType[*errs.LimitError](err)
	if !errors.Is(err, errs.ErrStateFull) || n < 1<<20 || !ok || over.Setting != "" {
		t.Fatalf("after %d deferred messages: %v", n, err)
	}
	s := subscribe(t, ch, 1)
	for _, body := range numbered("m", 50, 1<<20-100) { // two segments
		publish(t, topic, body)
		if m := s.next(); m.body != body {
			t.Fatalf("%.20q came", m.body)
		} else {
			s.finish(m)
		}
	}
	other := topicOf(t, e, "other")
	if _, err := other.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour}); err != nil {
		t.Errorf("another partition: %v", err)
	}
	if err := e.Health(); err != nil {
		t.Error(err)
	}
}

// Delays never stop messages without a delay: before so many wait between others that a channel could deliver nothing
// new (MaxRanges), further ones are refused by name, and so is a requeue with a delay. Health says so. Delayed messages
// next to each other are one hole, and any number of them may wait.
func TestDelaysNeverStopPlainMessages(t *testing.T) {
	o := inDir(t.TempDir())
	o.MaxRanges = 64
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s := subscribe(t, ch, 1)
	for i := range 500 { // they are next to each other
		if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if n := e.Stats("t", "")[0].DelaysRefused; n != 0 {
			t.Fatalf("%d partitions refuse delays after %d next to each other", n, i)
		}
	}
	refused := 0
	for i := range 100 {
		publish(t, topic, fmt.Sprint("now ", i))
		m := s.next()
		if m.body != fmt.Sprint("now ", i) {
			t.Fatalf("%q came in place of message %d", m.body, i)
		}
		if i == 99 {
			err := s.Requeue(m.id, time.Hour)
			if !errors.Is(err, errs.ErrGapsFull) || !errors.Is(err, errs.ErrStateFull) {
				t.Errorf("a requeue with a delay: %v", err)
			}
		}
		s.finish(m)
		switch _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour}); {
		case errors.Is(err, errs.ErrGapsFull):
			refused++
		case err != nil || refused > 0:
			t.Fatalf("delay %d: %v, after %d were refused", i, err, refused)
		}
	}
	if refused != 53 { // 47 of the 48 that MaxRanges leaves to delays; the first ones are another
		t.Errorf("%d delays were refused", refused)
	}
	healthSays(t, e, "topic t refuses delayed messages in 1 partition: ")
	if n := e.Storage().DelaysRefused; n != 1 || e.Stats("t", "")[0].DelaysRefused != 1 {
		t.Errorf("%d topics refuse delays", n)
	}
	if err := ch.Empty(ctxBg); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour}); err != nil {
		t.Errorf("the channel was emptied: %v", err)
	}
}
