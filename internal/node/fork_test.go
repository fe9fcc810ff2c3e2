package node_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// bodiesOf returns the bodies of a channel's messages, by the order of their ids.
func bodiesOf(t testing.TB, ch *node.Channel) (bodies []string) {
	t.Helper()
	all, err := ch.Peek(ctxBg, node.PeekOptions{Partition: -1, Count: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		bodies = append(bodies, string(m.Body))
	}
	return bodies
}

// A fork has the settings of the other channel, and starts where that one stands, or at another place among what is
// kept. Both go on by themselves, also after a crash.
func TestFork(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	channelOf(t, topic, "keeper") // what nobody confirmed stays
	set, err := c.Configure(t.Context(), fold.ChannelSettings{MaxAttempts: 3, SampleRate: 50})
	if err == nil {
		set.SampleRate = 0
		set, err = c.Configure(t.Context(), set)
	}
	if err != nil {
		t.Fatal(err)
	}
	var ids []node.ID
	var middle time.Time
	for i := range 8 {
		if i == 2 {
			time.Sleep(2 * time.Millisecond) // append times differ
			middle = e.Now()
		}
		id, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: fmt.Appendf(nil, "m%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	consumer := subscribe(t, c, 8)
	var got []delivered
	for range ids {
		got = append(got, consumer.next())
	}
	consumer.finish(got[0], got[1], got[2], got[5])
	synced := make(chan error, 1)
	consumer.local().Sync(func(err error) { synced <- err })
	if err := <-synced; err != nil {
		t.Fatal(err)
	}
	consumer.Close()
	want := map[string][]string{}
	for name, x := range map[string]struct {
		at   *node.SeekTo
		from int
	}{
		"here":   {nil, 3},
		"oldest": {&node.SeekTo{Kind: node.SeekBeginning}, 0},
		"newest": {&node.SeekTo{Kind: node.SeekEnd}, 8},
		"id":     {&node.SeekTo{Kind: node.SeekID, ID: ids[6]}, 6},
		"time":   {&node.SeekTo{Kind: node.SeekTime, Time: middle}, 2},
	} {
		if _, err := c.Fork(t.Context(), name, x.at); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := x.from; i < 8; i++ {
			want[name] = append(want[name], fmt.Sprint("m", i))
		}
	}
	check := func(topic *node.Topic) {
		t.Helper()
		for name, bodies := range want {
			fork, ok := topic.LookupChannel(name)
			if !ok {
				t.Errorf("there is no channel %s", name)
				continue
			}
			if got := bodiesOf(t, fork); !slices.Equal(got, bodies) {
				t.Errorf("channel %s has %q, want %q", name, got, bodies)
			}
			if s := fork.Settings(); s.Version != 1 || s.MaxAttempts != 3 || s.SampleRate != 0 {
				t.Errorf("channel %s has the settings %+v, those of c are %+v", name, s, set)
			}
		}
	}
	check(topic)
	if got := bodiesOf(t, c); len(got) != 4 {
		t.Errorf("channel c has %q", got)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Crash(1))
	topic = topicOf(t, e, "t")
	check(topic)
	fork, _ := topic.LookupChannel("here")
	if s, err := fork.Configure(t.Context(), fork.Settings()); err != nil || s.Version != 2 {
		t.Errorf("the fork is configured: %+v, %v", s, err)
	}
}

func TestForkRefuses(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	channelOf(t, topic, "other")
	ephemeral := channelOf(t, topic, "e#ephemeral")
	count := node.SeekTo{Kind: node.SeekCount, Count: 1}
	channel := node.SeekTo{Kind: "channel", Channel: "other"}
	end := node.SeekTo{Kind: node.SeekEnd}
	far := node.SeekTo{Kind: node.SeekID, ID: 1 << 48}
	for what, x := range map[string]struct {
		c    *node.Channel
		name string
		at   *node.SeekTo
		want error
	}{
		"it exists":          {c, "other", nil, errs.ErrChannelExists},
		"itself":             {c, "c", nil, errs.ErrChannelExists},
		"a count":            {c, "new", &count, errs.ErrSeek},
		"another channel":    {c, "new", &channel, errs.ErrSeek},
		"no such partition":  {c, "new", &far, errs.ErrNoPartition},
		"a bad name":         {c, "n n", nil, errs.ErrChannelName},
		"an ephemeral one":   {c, "n#ephemeral", nil, errs.ErrSeek},
		"of an ephemeral":    {ephemeral, "new", nil, errs.ErrSeek},
		"of none":            {topic.ChannelElsewhere("none"), "new", nil, errs.ErrNoChannel},
		"of none, at a time": {topic.ChannelElsewhere("none"), "new", &end, errs.ErrNoChannel},
	} {
		if _, err := x.c.Fork(t.Context(), x.name, x.at); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(topic.Channels()); n != 3 {
		t.Errorf("there are %d channels", n)
	}
}

// A message of a channel waits for a long time, and retention has carried it out of its old segment. A fork of the
// channel gets it, too, although the fork's reading cursor begins where the log has no message any more; so does its
// next process.
//
// B50, B67.
func TestForkOfCarried(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	s, _ := carriedWorld(t, e, topic, c)
	s.Close()
	fork, err := c.Fork(t.Context(), "fork", nil)
	if err != nil {
		t.Fatal(err)
	}
	k := subscribe(t, fork, 1)
	if m := k.next(); m.body != "again" || m.attempts != 1 {
		t.Errorf("the fork gets %+v", m)
	}
	e = openOnDisk(t, disk.Crash(1))
	topic, _ = e.Catalog().LookupTopic("t")
	fork, _ = topic.LookupChannel("fork")
	k = subscribe(t, fork, 1)
	m := k.next()
	if m.body != "again" || m.attempts != 1 {
		t.Errorf("after a crash the fork gets %+v", m)
	}
	k.finish(m)
	if waiting, err := fork.DeferredMessages(t.Context(), 10); err != nil || len(waiting) != 3 {
		t.Errorf("%d messages that were published with a delay wait in the fork: %v", len(waiting), err)
	}
}
