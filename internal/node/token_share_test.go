package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// makeFor makes a topic that counts for a token.
func makeFor(t testing.TB, e *node.Engine, token, name string, partitions int) *node.Topic {
	t.Helper()
	topic, err := e.CreateTopicWith(t.Context(), name, node.TopicOptions{Partitions: partitions, MadeBy: token})
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// counts requires that these are the topics and partitions of the tokens, written TOKEN TOPICS PARTITIONS.
func counts(t testing.TB, e *node.Engine, want string) {
	t.Helper()
	var got []string
	for _, u := range e.Catalog().TokenUses() {
		got = append(got, fmt.Sprint(u.Token, " ", u.Topics, " ", u.Partitions))
	}
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("counted are %q, want %q", text, want)
	}
}

// The topics that one token has made have half of max-topics and of max-partitions at most, also when many are made at
// the same time and when they grow; deleted ones count no more, and a restart counts the same.
func TestTokenShare(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	limits := func(o *node.Options) { o.MaxTopics, o.MaxPartitions = 8, 20 }
	e := openOnDisk(t, disk, limits)
	refused := func(what string, is error, n, most int, err error) {
		t.Helper()
		want := fmt.Sprintf(`of token "a" is %d, and at most %d is allowed: see the node's setting token-share`, n, most)
		if !errors.Is(err, is) || !errors.Is(err, errs.ErrShare) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	create := func(name string, partitions int) error {
		_, err := e.CreateTopicWith(t.Context(), name, node.TopicOptions{Partitions: partitions, MadeBy: "a"})
		return err
	}
	a := makeFor(t, e, "a", "a1", 6)
	refused("five more partitions", errs.ErrTooManyPartitions, 11, 10, create("a2", 5))
	makeFor(t, e, "a", "a2", 3)
	set := a.Settings()
	set.Partitions = 8
	_, err := a.ConfigureAs(t.Context(), "a", set)
	refused("growth", errs.ErrTooManyPartitions, 11, 10, err)
	counts(t, e, "a 2 9")
	set.Partitions = 7
	if set, err = a.ConfigureAs(t.Context(), "b", set); err != nil { // another tenant that may administer the topic
		t.Fatal(err)
	}
	counts(t, e, "a 2 10")
	set.Partitions = 8
	_, err = a.ConfigureAs(t.Context(), "b", set)
	refused("growth by another", errs.ErrTooManyPartitions, 11, 10, err)
	if set, err = a.ConfigureAs(t.Context(), "", set); err != nil {
		t.Errorf("an administrator adds a partition: %v", err)
	}

	nobodys, err := e.CreateTopic(t.Context(), "nobodys", 1)
	if err != nil {
		t.Fatal(err)
	}
	set = nobodys.Settings()
	set.Partitions = 2
	if _, err := nobodys.ConfigureAs(t.Context(), "a", set); !errors.Is(err, meta.ErrSettings) ||
		!strings.Contains(err.Error(), "token-share") {
		t.Errorf("a token adds partitions that count for nobody: %v", err)
	}
	set.Partitions, set.QuotaCount = 0, 9
	if _, err := nobodys.ConfigureAs(t.Context(), "a", set); err != nil {
		t.Errorf("a token changes another setting: %v", err)
	}
	makeFor(t, e, "b", "b1", 3)
	if err := e.DeleteTopic(t.Context(), "a1"); err != nil {
		t.Fatal(err)
	}
	counts(t, e, "a 1 3, b 1 3")

	var all sync.WaitGroup
	var made atomic.Int64
	for i := range 16 {
		all.Go(func() {
			switch err := create(fmt.Sprint("many", i), 1); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, errs.ErrTooManyTopics):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 3 {
		t.Errorf("the token made %d topics where its share had room for 3", made.Load())
	}
	refused("one topic too many", errs.ErrTooManyTopics, 5, 4, create("more", 1))
	counts(t, e, "a 4 6, b 1 3")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1), limits, func(o *node.Options) { o.TokenShare = 100 })
	counts(t, e, "a 4 6, b 1 3")
	if topic, _ := e.Catalog().LookupTopic("a2"); topic.MadeBy() != "a" {
		t.Errorf("after a restart %q has made the topic", topic.MadeBy())
	}
	if err := create("more", 1); err != nil {
		t.Errorf("without shares: %v", err)
	}
	if err := create("other", 1); !errors.Is(err, errs.ErrTooManyTopics) && err != nil {
		t.Error(err)
	}
}

// What a token is making counts as what it has made.
func TestTokenShareOfWhatIsBeingMade(t *testing.T) {
	t.Parallel()
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxTopics, o.MaxPartitions = 8, 20 })
	create := func(name string, partitions int) error {
		_, err := e.CreateTopicWith(t.Context(), name, node.TopicOptions{Partitions: partitions, MadeBy: "a"})
		return err
	}
	a, b := makeFor(t, e, "a", "a1", 1), makeFor(t, e, "b", "b1", 1)
	for _, name := range []string{"a2", "a3"} {
		makeFor(t, e, "a", name, 1)
	}
	one := node.Creating(e, "a", "making", 1)
	if err := create("more", 1); !errors.Is(err, errs.ErrTopicShare) {
		t.Errorf("while a fourth topic is made: %v", err)
	}
	one()
	for what, begin := range map[string]func() func(){
		"a topic is made": func() func() { return node.Creating(e, "a", "making", 6) },
		"a topic grows":   func() func() { return node.Growing(t, e, a, 7) },
	} {
		if err := e.DeleteTopic(t.Context(), "a3"); err != nil {
			t.Fatal(err)
		}
		done := begin()
		if err := create("a3", 3); !errors.Is(err, errs.ErrPartitionShare) {
			t.Errorf("while %s: %v", what, err)
		}
		done()
		other := node.Creating(e, "b", "theirs", 8)
		grows := node.Growing(t, e, b, 2)
		if err := create("a3", 8); err != nil {
			t.Errorf("while another token makes something: %v", err)
		}
		other()
		grows()
	}
}

// A name that no topic can remember is refused.
func TestTokenShareName(t *testing.T) {
	t.Parallel()
	e := openOnDisk(t, newDisk())
	for _, name := range []string{strings.Repeat("x", 129), "\xff"} {
		_, err := e.CreateTopicWith(t.Context(), "t", node.TopicOptions{MadeBy: name})
		if _, ok := e.Catalog().LookupTopic("t"); ok || !errors.Is(err, errs.ErrTopicOptions) {
			t.Errorf("%q: %v", name, err)
		}
	}
	makeFor(t, e, strings.Repeat("x", 128), "t", 1)
}

// stateOf returns what the state of the token's topics costs in memory.
func stateOf(e *node.Engine, token string) (n int64) {
	for _, u := range e.Catalog().TokenUses() {
		if u.Token == token {
			n = u.StateBytes
		}
	}
	return n
}

// What is counted of the state of tokens is what the node counts of their topics: while messages are delayed and
// delivered, channels and topics made and deleted, and after a restart.
func TestTokenStateIsCounted(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	check := func(when string) {
		t.Helper()
		eventually(t, when+": the sums are equal", func() bool {
			return stateOf(e, "a")+stateOf(e, "b") == e.Storage().StateBytes
		})
	}
	a, b := makeFor(t, e, "a", "a", 2), makeFor(t, e, "b", "b", 1)
	channelOf(t, a, "c")
	channelOf(t, b, "c")
	check("with channels")
	delay := func(topic *node.Topic, n int) {
		t.Helper()
		for range n {
			if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := stateOf(e, "b")
	delay(a, 500)
	if n := stateOf(e, "a"); n < 500*50 || stateOf(e, "b") != before {
		t.Errorf("500 delayed messages are %d bytes of one token, and %d became %d of the other", n, before, stateOf(e, "b"))
	}
	delay(b, 100)
	channelOf(t, a, "d")
	check("with delayed messages")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1))
	if stateOf(e, "a") < 500*50 || stateOf(e, "b") < 100*50 {
		t.Errorf("after a restart: %+v", e.Catalog().TokenUses())
	}
	check("after a restart")
	if err := channelOf(t, topicOf(t, e, "a"), "c").Empty(ctxBg); err != nil {
		t.Fatal(err)
	}
	if n := stateOf(e, "a"); n > 500*50 {
		t.Errorf("after the channel was emptied: %+v", e.Catalog().TokenUses())
	}
	check("after the channel was emptied")
}

// At the share of one token's state, requests that would add to it are refused in all topics that it has made, and in
// no others; without shares the limit of the node is the first.
func TestTokenStateShare(t *testing.T) {
	t.Parallel()
	for _, percent := range []int{30, 100} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			t.Parallel()
			e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxStateBytes, o.TokenShare = 300_000, percent })
			a, a2, b := makeFor(t, e, "a", "a", 1), makeFor(t, e, "a", "a2", 1), makeFor(t, e, "b", "b", 1)
			for _, topic := range []*node.Topic{a, a2, b} {
				channelOf(t, topic, "c")
			}
			var err error
			for n := 0; err == nil && n < 5000; n++ {
				_, err = a.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour})
			}
			over, ok := errors.AsType[*errs.LimitError](err)
			if !ok || !errors.Is(err, errs.ErrStateFull) || errors.Is(err, errs.ErrShare) != (percent < 100) ||
				over.Most != int64(3000*percent) {
				t.Fatalf("refused with %v", err)
			}
			if percent == 100 {
				return
			}
			full := func(what string, topic *node.Topic, want bool) {
				t.Helper()
				_, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour})
				if errors.Is(err, errs.ErrStateShare) != want {
					t.Errorf("%s: a delayed message: %v", what, err)
				}
				if _, err := topic.OpenProducer(t.Context(), 0, "p"); errors.Is(err, errs.ErrStateShare) != want {
					t.Errorf("%s: a producer: %v", what, err)
				}
				publish(t, topic, "now")
				s := subscribe(t, channelOf(t, topic, "c"), 1)
				if err := s.Requeue(s.next().id, time.Hour); errors.Is(err, errs.ErrStateShare) != want {
					t.Errorf("%s: a requeue with a delay: %v", what, err)
				}
				if _, err := topic.Channel(ctxBg, "d"); errors.Is(err, errs.ErrStateShare) != want {
					t.Errorf("%s: a channel: %v", what, err)
				}
			}
			full("the same topic", a, true)
			full("another topic of the token", a2, true)
			full("a topic of another token", b, false)
			full("a topic of nobody", topicOf(t, e, "n"), false)
			if err := e.DeleteTopic(ctxBg, "a"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A dead-letter topic counts for the token for which the topic of the dead letters counts.
func TestTokenShareOfDeadLetters(t *testing.T) {
	t.Parallel()
	e := openOnDisk(t, newDisk())
	topic := makeFor(t, e, "a", "t", 1)
	ch := channelOf(t, topic, "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	id := publish(t, topic, "bad")[0]
	failMessages(t, subscribe(t, ch, 1), id)
	deadLetters(t, topic, "t.DLQ", 1)
	counts(t, e, "a 2 2")
}

// All nodes of a cluster count the same, whichever made the topic. One whose topic.json an older version has written
// learns from the metadata who made it.
func TestClusterTokenShare(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.MaxPartitions, o.DefaultQuotaBytes = 20, 5<<20
	})
	makeFor(t, tc.nodes[0].e, "a", "t", 6)
	alike := func(want string) {
		t.Helper()
		for _, m := range tc.nodes {
			tc.eventually(m.name+" counts "+want, func() bool {
				uses := m.e.Catalog().TokenUses()
				return len(uses) == 1 && fmt.Sprint(uses[0].Token, " ", uses[0].Topics, " ", uses[0].Partitions) == want
			})
		}
	}
	alike("a 1 6")
	for _, m := range tc.nodes {
		_, err := m.e.CreateTopicWith(t.Context(), "u", node.TopicOptions{Partitions: 5, MadeBy: "a"})
		if !errors.Is(err, errs.ErrPartitionShare) {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	topic, err := tc.nodes[1].e.TopicAs(t.Context(), "a", "used")
	if err != nil {
		t.Fatal(err)
	}
	if s := topic.Settings(); s.QuotaBytes != 5<<20 || s.QuotaMode != meta.QuotaReject || s.Version != 1 {
		t.Errorf("a topic that is made by use has %+v", s)
	}
	alike("a 2 7")
	old := tc.nodes[2]
	node.ForgetMaker(t, old.e, "t")
	tc.kill(old)
	tc.startAll()
	alike("a 2 7")
	tc.stop(old)
	if files := node.StoredMakers(t, old.disk); !strings.Contains(files, "t a\n") {
		t.Errorf("the files of the topics say %q", files)
	}
}

// A topic that publishing or subscribing makes has the default quota, and one that is made on purpose has none.
func TestDefaultQuota(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.DefaultQuotaBytes = 10_000 })
	made, err := e.CreateTopic(t.Context(), "made", 1)
	if err != nil {
		t.Fatal(err)
	}
	if s := made.Settings(); s.Version != 0 || s.QuotaBytes != 0 {
		t.Errorf("a topic that was created has %+v", s)
	}
	used := topicOf(t, e, "used")
	channelOf(t, used, "c")
	for range 100 {
		if _, err = used.PublishMessage(ctxBg, node.Outgoing{Body: make([]byte, 1000)}); err != nil {
			break
		}
	}
	if over, ok := errors.AsType[*errs.LimitError](err); !ok || !errors.Is(err, errs.ErrQuota) ||
		over.Most != int64(10_000) {
		t.Errorf("a topic that is made by use takes more than its quota: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1))
	if s := topicOf(t, e, "used").Settings(); s.QuotaBytes != 10_000 || s.Version != 1 {
		t.Errorf("after a restart: %+v", s)
	}
}

// The last tenth of the disk is for those who have no more than their share: when a token fills the disk, publishing to
// its topics is refused before the disk is full, and others go on. When its messages are finished, it goes on, too.
func TestTokenFillsTheDisk(t *testing.T) {
	t.Parallel()
	for _, percent := range []int{50, 100} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			t.Parallel()
			disk := newDisk()
			e := openOnDisk(t, disk, func(o *node.Options) { o.TokenShare = percent })
			a, b := makeFor(t, e, "a", "a", 1), makeFor(t, e, "b", "b", 1)
			ch := channelOf(t, a, "c")
			disk.SetCapacity(usedBytes(t, disk) + 32<<20)
			body := strings.Repeat("x", 15<<10)
			err := fillDisk(t, e, a, body, percent < 100)
			if percent == 100 {
				if !errors.Is(err, errs.ErrNoSpace) {
					t.Errorf("without shares: %v", err)
				}
				return
			}
			over, ok := errors.AsType[*errs.LimitError](err)
			if !ok || !errors.Is(err, errs.ErrStoredShare) || !errors.Is(err, errs.ErrQuota) ||
				over.Value.(int64) < 18<<20 || over.Most.(int64) > 16<<20 || over.Setting != "token-share" {
				t.Fatalf("the token was refused with %v", err)
			}
			for range 16 {
				publish(t, b, body)
			}
			publish(t, topicOf(t, e, "nobodys"), body)
			if _, err := a.PublishMessage(ctxBg, node.Outgoing{Body: []byte("x")}); !errors.Is(err, errs.ErrStoredShare) {
				t.Errorf("the token is refused no more: %v", err)
			}
			channelOf(t, a, "more") // control entries are stored
			if err := a.DeleteChannel(ctxBg, "more"); err != nil {
				t.Error(err)
			}
			if err := ch.Empty(ctxBg); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the token to go on", func() bool {
				_, err := a.PublishMessage(ctxBg, node.Outgoing{Body: []byte("x")})
				return err == nil
			})
		})
	}
}

// fillDisk publishes to a topic of token a until that is refused, and returns why. If counted is set, it lets the node,
// which looks at a disk that fills ten times a second, keep up.
func fillDisk(t *testing.T, e *node.Engine, topic *node.Topic, body string, counted bool) error {
	t.Helper()
	for sent := 1; ; sent++ {
		if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte(body)}); err != nil {
			return err
		}
		if !counted || sent%32 != 0 || sent*len(body) < 20<<20 {
			continue
		}
		eventually(t, "the node to look at the disk", func() bool {
			return slices.ContainsFunc(e.Catalog().TokenUses(), func(u node.TokenUse) bool {
				return u.Token == "a" && u.StoredBytes >= int64(sent*len(body))
			})
		})
	}
}
