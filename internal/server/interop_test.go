package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gonsq "github.com/nsqio/go-nsq"

	nativeclient "penstock/client"
	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// What native clients publish, NSQ's clients consume, and the other way round: the tests here run for each publisher
// with each consumer, on one node and on three. A new kind of client is one more row in publishers or consumers.

// note is a message of these tests. Its headers are names and values, alternating.
type note struct {
	body, key string
	headers   []string
}

// taken is a note as a consumer gets it. NSQ's protocol shows no headers to stock clients: headers is "" then.
type taken struct {
	body, headers string
	attempts      int
	at            time.Time
	finish        func()
	requeue       func(delay time.Duration)
}

// publisher publishes notes to a topic of all nodes, each after the one before was answered.
type publisher func(t *testing.T, nodes []*testNode, topic string, notes []note)

// consumer consumes a channel, from all nodes, with up to 50 messages in flight, until the end of the test.
type consumer func(t *testing.T, nodes []*testNode, topic, channel string) <-chan taken

var publishers = map[string]publisher{"native": publishNative, "nsq": publishNSQ}

var consumers = map[string]consumer{
	"native": func(t *testing.T, nodes []*testNode, topic, channel string) <-chan taken {
		return consumeNative(t, nodes, topic, channel, "")
	},
	"nsq": consumeNSQ,
}

func dialNative(t *testing.T, nodes []*testNode) *nativeclient.Client {
	t.Helper()
	var seeds []string
	for _, n := range nodes {
		seeds = append(seeds, n.NativeAddr().String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
	defer cancel()
	c, err := nativeclient.Dial(ctx, seeds, nativeclient.Options{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), MinDelay: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func publishNative(t *testing.T, nodes []*testNode, topic string, notes []note) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
	defer cancel()
	p, err := dialNative(t, nodes).Producer(ctx, topic, nativeclient.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range notes {
		m := &nativeclient.Message{Body: []byte(n.body)}
		if n.key != "" {
			m.Key = []byte(n.key)
		}
		for i := 0; i < len(n.headers); i += 2 {
			m.Headers = append(m.Headers, nativeclient.Header{Key: []byte(n.headers[i]), Value: []byte(n.headers[i+1])})
		}
		if _, err := p.ProduceSync(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// publishNSQ publishes with go-nsq what it can say, and the rest over HTTP, at the nodes in turn.
func publishNSQ(t *testing.T, nodes []*testNode, topic string, notes []note) {
	t.Helper()
	p, err := gonsq.NewProducer(nodes[len(nodes)-1].TCPAddr().String(), gonsq.NewConfig())
	if err != nil {
		t.Fatal(err)
	}
	p.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
	defer p.Stop()
	for i, n := range notes {
		if n.key == "" && n.headers == nil {
			if err := p.Publish(topic, []byte(n.body)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var headers []string
		for i, h := range n.headers {
			if i%2 == 0 {
				h = "X-Penstock-Header-" + h
			}
			headers = append(headers, h)
		}
		path := "/pub?topic=" + topic + "&key=" + n.key
		if status, text := nodes[i%len(nodes)].postWith(t, path, n.body, headers...); status != 200 {
			t.Fatalf("%s: %d %s", path, status, text)
		}
	}
}

func consumeNative(t *testing.T, nodes []*testNode, topic, channel, tag string) <-chan taken {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*nsqtest.Patience)
	c, err := dialNative(t, nodes).Consumer(ctx, topic, channel, nativeclient.ConsumerOptions{MaxInFlight: 50, Tag: tag})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan taken, 1000)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			d, err := c.Next(ctx)
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("the native consumer ends: %v", err)
				}
				return
			}
			var headers []string
			for _, h := range d.Headers {
				headers = append(headers, fmt.Sprintf("%s=%s", h.Key, h.Value))
			}
			if d.Key != nil {
				headers = append(headers, "key="+string(d.Key))
			}
			settled := func(err error) {
				if err != nil {
					t.Errorf("%s: %v", d.Body, err)
				}
			}
			out <- taken{
				string(d.Body), strings.Join(headers, " "), d.Attempts, time.Now(),
				func() { settled(d.Finish()) }, func(delay time.Duration) { settled(d.Requeue(delay)) },
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = c.Close(context.WithoutCancel(ctx))
	})
	return out
}

func consumeNSQ(t *testing.T, nodes []*testNode, topic, channel string) <-chan taken {
	t.Helper()
	cfg := gonsq.NewConfig()
	cfg.MaxInFlight, cfg.MaxAttempts = 50, 0
	c, err := gonsq.NewConsumer(topic, channel, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
	out := make(chan taken, 1000)
	c.AddHandler(gonsq.HandlerFunc(func(m *gonsq.Message) error {
		m.DisableAutoResponse()
		out <- taken{string(m.Body), "", int(m.Attempts), time.Now(), m.Finish, m.RequeueWithoutBackoff}
		return nil
	}))
	var all []string
	for _, n := range nodes {
		all = append(all, n.TCPAddr().String())
	}
	if err := c.ConnectToNSQDs(all); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop()
		<-c.StopChan
	})
	return out
}

// nextTaken returns the next message.
func nextTaken(t *testing.T, from <-chan taken) taken {
	t.Helper()
	select {
	case m := <-from:
		return m
	case <-time.After(nsqtest.Patience):
		t.Fatal("no message came")
		return taken{}
	}
}

// finishAll takes and finishes n messages, and returns them as "body headers", sorted by body.
func finishAll(t *testing.T, from <-chan taken, n int) (all []string) {
	t.Helper()
	for range n {
		m := nextTaken(t, from)
		m.finish()
		all = append(all, strings.TrimSpace(m.body+" "+m.headers))
	}
	slices.Sort(all)
	return all
}

// interop runs a test for every publisher with every consumer, on one node and on three. shows says whether the
// consumer shows headers.
func interop(
	t *testing.T,
	test func(t *testing.T, nodes []*testNode, topic string, publish publisher, consume consumer, shows bool),
) {
	for _, count := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", count), func(t *testing.T) {
			o := Options{BroadcastAddress: "127.0.0.1", NativeAddress: "127.0.0.1:0"}
			var nodes []*testNode
			if count == 1 {
				nodes = []*testNode{startNode(t, node.Options{}, o)}
			} else {
				nodes = startCluster(t, count, o)
			}
			for p, publish := range publishers {
				for c, consume := range consumers {
					t.Run(p+" to "+c, func(t *testing.T) {
						topic := p + "-" + c
						nodes[0].post(t, "/topic/create?partitions=4&topic="+topic, "")
						makeChannel(t, nodes, topic, "c", 4)
						test(t, nodes, topic, publish, consume, c == "native")
					})
				}
			}
		})
	}
}

// configureC sets the settings of the channel c.
func configureC(t *testing.T, nodes []*testNode, topic, settings string) {
	t.Helper()
	nodes[0].post(t, "/channel/settings?channel=c&topic="+topic, `{"version":0,`+settings+`}`)
}

// notesOf returns notes 0 to n-1.
func notesOf(n int, of func(i int) note) (all []note) {
	for i := range n {
		all = append(all, of(i))
	}
	return all
}

// Headers, keys, filters and delays.
func TestInteropMessages(t *testing.T) {
	interop(t, func(t *testing.T, nodes []*testNode, topic string, publish publisher, consume consumer, shows bool) {
		configureC(t, nodes, topic, `"filter":{"all":true,"rules":[{"header":"kind","match":"prefix","pattern":"in"}]}`)
		publish(t, nodes, topic, notesOf(30, func(i int) note {
			n := note{body: fmt.Sprintf("m%02d", i), key: fmt.Sprint("k", i%5)}
			n.headers = []string{"kind", []string{"invoice", "order", "intern"}[i%3], "n", fmt.Sprint(i)}
			return n
		}))
		publish(t, nodes, topic, []note{{body: "plain"}}) // no header: the filter does not want it
		var want []string
		for i := range 30 {
			if i%3 != 1 {
				text := fmt.Sprintf("m%02d", i)
				if shows {
					text += fmt.Sprintf(" kind=%s n=%d key=k%d", []string{"invoice", "", "intern"}[i%3], i, i%5)
				}
				want = append(want, text)
			}
		}
		from := consume(t, nodes, topic, "c")
		first := nextTaken(t, from)
		began := time.Now()
		first.requeue(200 * time.Millisecond) // and it comes again, as long after as that
		var rest []string
		again := taken{}
		for len(rest) < len(want) {
			m := nextTaken(t, from)
			m.finish()
			rest = append(rest, strings.TrimSpace(m.body+" "+m.headers))
			if m.body == first.body {
				again = m
			}
		}
		slices.Sort(rest)
		if !slices.Equal(rest, want) {
			t.Errorf("got %q, want %q", rest, want)
		}
		if again.attempts != 2 || again.at.Sub(began) < 200*time.Millisecond {
			t.Errorf("requeued, it came in attempt %d after %v", again.attempts, again.at.Sub(began))
		}
		select {
		case m := <-from:
			t.Errorf("%q came, too", m.body)
		case <-time.After(50 * time.Millisecond):
		}
	})
}

// A message that was published with a delay comes to every consumer when it is due. Native clients cannot publish one.
func TestInteropDelays(t *testing.T) {
	n := startNode(t, node.Options{}, Options{BroadcastAddress: "127.0.0.1", NativeAddress: "127.0.0.1:0"})
	for name, consume := range consumers {
		t.Run(name, func(t *testing.T) {
			makeChannel(t, []*testNode{n}, name, "c", 2)
			from := consume(t, []*testNode{n}, name, "c")
			began := time.Now()
			n.post(t, "/pub?defer=300&topic="+name, "later")
			n.post(t, "/pub?topic="+name, "now")
			for i, want := range []string{"now", "later"} {
				m := nextTaken(t, from)
				m.finish()
				if m.body != want || i == 1 && m.at.Sub(began) < 300*time.Millisecond {
					t.Errorf("%q comes after %v, want %q", m.body, m.at.Sub(began), want)
				}
			}
		})
	}
}

// The order of a partition and of a key, through a requeue.
func TestInteropOrder(t *testing.T) {
	for _, order := range []string{"partition", "key"} {
		t.Run(order, func(t *testing.T) {
			interop(t, func(t *testing.T, nodes []*testNode, topic string, publish publisher, consume consumer, _ bool) {
				configureC(t, nodes, topic, fmt.Sprintf(`"order":%q`, order))
				publish(t, nodes, topic, notesOf(40, func(i int) note {
					return note{body: fmt.Sprintf("%d %02d", i%4, i), key: fmt.Sprint("k", i%4)}
				}))
				from := consume(t, nodes, topic, "c")
				last := map[string]string{} // by key
				for finished := 0; finished < 40; {
					m := nextTaken(t, from)
					key, _, _ := strings.Cut(m.body, " ")
					if m.body <= last[key] {
						t.Fatalf("%q comes behind %q", m.body, last[key])
					}
					if m.attempts == 1 && finished%7 == 3 {
						m.requeue(0)
						continue
					}
					last[key] = m.body
					finished++
					m.finish()
				}
			})
		})
	}
}

// Dead letters and samples.
func TestInteropDeadLettersAndSamples(t *testing.T) {
	interop(t, func(t *testing.T, nodes []*testNode, topic string, publish publisher, consume consumer, shows bool) {
		configureC(t, nodes, topic, `"max_attempts":2`)
		nodes[0].post(t, "/topic/create?topic="+topic+".DLQ", "")
		makeChannel(t, nodes, topic+".DLQ", "dead", 1)
		makeChannel(t, nodes, topic, "sample", 4)
		nodes[0].post(t, "/channel/settings?channel=sample&topic="+topic, `{"version":0,"sample_rate":50}`)
		publish(t, nodes, topic, notesOf(200, func(i int) note {
			return note{body: fmt.Sprintf("m%03d", i), headers: []string{"n", fmt.Sprint(i)}}
		}))
		from := consume(t, nodes, topic, "c")
		for finished, bad := 0, 0; finished < 199 || bad < 2; {
			m := nextTaken(t, from)
			if m.body == "m007" {
				bad++
				m.requeue(0)
				continue
			}
			finished++
			m.finish()
		}
		dead := nextTaken(t, consume(t, nodes, topic+".DLQ", "dead"))
		dead.finish()
		if dead.body != "m007" || shows && (!strings.Contains(dead.headers, "n=7") ||
			!strings.Contains(dead.headers, "penstock-origin-topic="+topic)) {
			t.Errorf("the dead letter is %q with %q", dead.body, dead.headers)
		}
		sample := consume(t, nodes, topic, "sample")
		count := 0
		for quiet := false; !quiet; {
			select {
			case m := <-sample:
				m.finish()
				count++
			case <-time.After(300 * time.Millisecond):
				quiet = count > 0 && channelDepth(nodes, topic, "sample") == 0
			}
		}
		if count < 60 || count > 140 {
			t.Errorf("the sample of one half has %d of 200 messages", count)
		}
	})
}

// channelDepth adds up the channel's depth, and what it has in flight, over the nodes.
func channelDepth(nodes []*testNode, topic, channel string) (depth int64) {
	for _, n := range nodes {
		for _, s := range n.e.Stats(topic, channel) {
			for i := range s.Channels {
				depth += s.Channels[i].Depth + int64(s.Channels[i].InFlightCount)
			}
		}
	}
	return depth
}

// A message with a tag goes to the consumer of the tag, which here is a native one, and the others to the rest.
func TestInteropTags(t *testing.T) {
	interop(t, func(t *testing.T, nodes []*testNode, topic string, publish publisher, consume consumer, shows bool) {
		red, rest := consumeNative(t, nodes, topic, "c", "red"), consume(t, nodes, topic, "c")
		nsqtest.Eventually(t, "both consumers at every leader", func() bool {
			consumers := 0
			for _, n := range nodes {
				for _, s := range n.e.Stats(topic, "c") {
					for i := range s.Channels {
						consumers += len(s.Channels[i].Consumers)
					}
				}
			}
			return consumers >= 2*leadersOf(nodes, topic)
		})
		publish(t, nodes, topic, notesOf(20, func(i int) note {
			if i%2 == 0 {
				return note{body: fmt.Sprintf("red %02d", i), headers: []string{"tag", "red"}}
			}
			return note{body: fmt.Sprintf("any %02d", i)}
		}))
		for name, from := range map[string]<-chan taken{"red": red, "any": rest} {
			for _, m := range finishAll(t, from, 10) {
				if !strings.HasPrefix(m, name) {
					t.Errorf("the consumer of %s gets %q", name, m)
				}
			}
		}
	})
}

// leadersOf returns how many nodes lead a partition of the topic.
func leadersOf(nodes []*testNode, topic string) (count int) {
	for _, n := range nodes {
		if n.leadsSome(topic) {
			count++
		}
	}
	return count
}

// A publisher that numbers its messages over HTTP, and a native producer of the same name, are the same producer.
func TestInteropProducers(t *testing.T) {
	n := startNode(t, node.Options{}, Options{BroadcastAddress: "127.0.0.1", NativeAddress: "127.0.0.1:0"})
	makeChannel(t, []*testNode{n}, "t", "c", 1)
	ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
	defer cancel()
	c := dialNative(t, []*testNode{n})
	first := n.openProducer(t, "shop", "")
	if status, text := n.postWith(t, "/pub?topic=t", "m0", numbersOf("shop", first.Epoch, 0)...); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	p, err := c.Producer(ctx, "t", nativeclient.ProducerOptions{Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ProduceSync(ctx, &nativeclient.Message{Body: []byte("m1")}); err != nil {
		t.Fatal(err)
	}
	if status, text := n.postWith(t, "/pub?topic=t", "late", numbersOf("shop", first.Epoch, 2)...); status != 409 ||
		!strings.Contains(text, "PRODUCER_FENCED") {
		t.Errorf("behind the native producer: %d %s", status, text)
	}
	second := n.openProducer(t, "shop", "")
	if second.Sequence != 2 || second.Epoch <= first.Epoch {
		t.Errorf("opened again it is %+v", second)
	}
	if _, err := p.ProduceSync(ctx, &nativeclient.Message{Body: []byte("late")}); !errors.Is(err, nativeclient.ErrFenced) {
		t.Errorf("the native producer behind it: %v", err)
	}
	_ = p.Close(ctx)
	if status, text := n.postWith(t, "/pub?topic=t", "m2", numbersOf("shop", second.Epoch, 2)...); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if got := storedIn(t, n, 0); !slices.Equal(got, []string{"m0", "m1", "m2"}) {
		t.Errorf("%q are stored", got)
	}
}
