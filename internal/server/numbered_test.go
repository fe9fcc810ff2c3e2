package server

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/auth"
	"penstock/internal/server/publish"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// numbers are the headers of a producer's message as an ext.
func numbers(name string, epoch, sequence any) string {
	return fmt.Sprintf(`{"a":"b","penstock-producer":%q,"penstock-epoch":"%v","penstock-sequence":"%v"}`,
		name, epoch, sequence)
}

// numbersOf are the same as HTTP headers, for postWith.
func numbersOf(name string, epoch, sequence any) []string {
	return []string{
		"Penstock-Producer", name, "Penstock-Epoch", fmt.Sprint(epoch), "Penstock-Sequence", fmt.Sprint(sequence),
	}
}

// tenureOf returns an epoch without its partition.
func tenureOf(epoch string) string {
	tenure, _, _ := strings.Cut(epoch, "-")
	return tenure
}

// later returns an epoch of the same partition that is later.
func later(epoch string) string {
	tenure, partition, _ := strings.Cut(epoch, "-")
	n, _ := strconv.ParseUint(tenure, 10, 64)
	return fmt.Sprint(n+1, "-", partition)
}

func isLater(a, b string) bool {
	n, _ := strconv.ParseUint(tenureOf(a), 10, 64)
	m, _ := strconv.ParseUint(tenureOf(b), 10, 64)
	return n > m
}

// openProducer opens a producer over HTTP; query has further parameters.
func (n *testNode) openProducer(t testing.TB, name, query string) (p api.ProducerOpened) {
	t.Helper()
	nsqtest.Eventually(t, "the producer to be opened", func() bool { // the level rises shortly after a cluster's start
		status, text := n.do(t, "POST", "/producer/open?topic=t&producer="+url.QueryEscape(name)+query, "")
		return status == 200 || !strings.Contains(text, "feature level")
	})
	n.ask(t, "POST", "/producer/open?topic=t&producer="+url.QueryEscape(name)+query, "", &p)
	return p
}

// stored returns the bodies of the messages in a partition of the topic t, with their headers, in the order of the log.
func storedIn(t testing.TB, n *testNode, partition int) (all []string) {
	t.Helper()
	topic, ok := n.e.Catalog().LookupTopic("t")
	if !ok {
		t.Fatal("there is no topic t")
	}
	list, err := topic.Peek(t.Context(), partition, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		text := string(m.Body)
		for _, h := range m.Headers {
			text += fmt.Sprintf(" %s=%s", h.Key, h.Value)
		}
		all = append(all, text)
	}
	return all
}

// What a publisher of NSQ's numbers is stored once and in order, through any node and by any way to publish. The
// numbers are not stored with the messages.
//
// B17, B19.
func TestNumberedPublishes(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 4)
		for i, n := range nodes {
			name := fmt.Sprint("shop ", i)
			p := n.openProducer(t, name, "")
			topic, _ := n.e.Catalog().LookupTopic("t")
			if at := topic.PartitionFor([]byte(name)); p.Partition != at || p.Epoch == "" || p.Sequence != 0 {
				t.Fatalf("opened %+v; the name belongs to partition %d", p, at)
			}
			ext := func(sequence int) string { return numbers(name, p.Epoch, sequence) }
			before := storedIn(t, n, p.Partition)
			c := n.dial(t)
			c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext(0), "m0")) + // several at a time, a repeat among them
				"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext(1), "m1")) +
				"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext(0), "m0")) +
				"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(`{}`, "nobody's")) +
				"MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext(2), "m2"), nsqtest.WithExt(`{}`, "m3"),
				nsqtest.WithExt(ext(4), "m4"))))
			for range 5 {
				c.OK()
			}
			for _, x := range []struct {
				cmd, code string
			}{
				{"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext(6), "gap")), publish.CodeSequence},
				{"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext(2), "part of a batch")), publish.CodeSequence},
				{
					"MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext(4), "x"), nsqtest.WithExt(`{}`, "overlap"))),
					publish.CodeSequence,
				},
				{
					"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(numbers(name, later(p.Epoch), 5), "epoch")),
					publish.CodeUnknownProducer,
				},
				{
					"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(numbers("nobody", 1, 0), "never opened")),
					publish.CodeUnknownProducer,
				},
				{
					"PUB_EXT t " + fmt.Sprint((p.Partition+1)%4) + "\n" + nsqtest.Sized(nsqtest.WithExt(ext(5), "elsewhere")),
					publish.CodeUnknownProducer,
				},
			} {
				c.Send(x.cmd)
				refusedAs(c, x.code) // and the connection goes on
			}
			c.Send("MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext(2), "m2"), nsqtest.WithExt(`{}`, "m3"),
				nsqtest.WithExt(`{}`, "other"))))
			refusedAs(c, publish.CodeSequence)
			c.Send("MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext(2), "m2"), nsqtest.WithExt(`{}`, "m3"),
				nsqtest.WithExt(ext(4), "m4"))))
			c.OK()
			for _, x := range []struct {
				path, body string
				headers    []string
				status     int
				reply      string
			}{
				{"/pub?topic=t", "m5", numbersOf(name, p.Epoch, 5), 200, "OK"},
				{"/mpub?topic=t", "m6\nm7\n", numbersOf(name, p.Epoch, 6), 200, "OK"},
				{"/mpub?topic=t", "m6\nm7\n", numbersOf(name, p.Epoch, 6), 200, "OK"},
				{"/pub?topic=t", "m5", numbersOf(name, p.Epoch, 5), 200, "OK"},
				{"/pub?topic=t", "gap", numbersOf(name, p.Epoch, 9), 409, "PRODUCER_SEQUENCE: "},
				{"/pub?topic=t", "never", numbersOf("nobody", 1, 0), 409, "PRODUCER_UNKNOWN: "},
				{"/mpub?topic=t", "\n\n", numbersOf("nobody", 1, 0), 200, "OK"}, // nothing but empty lines
				{"/pub_ext?topic=t&ext=" + url.QueryEscape(ext(8)), "m8", nil, 200, "OK"},
				{"/pub_ext?topic=t&ext=" + url.QueryEscape(ext(8)), "m8", nil, 200, "OK"},
				{"/pub_ext?topic=t&ext=%7B%7D", "m9", numbersOf(name, p.Epoch, 9), 200, "OK"},
				{
					fmt.Sprintf("/pub?topic=t&partition=%d", p.Partition), "m10",
					append(numbersOf(name, p.Epoch, 10), "X-Penstock-Header-X", "y"),
					200, "OK",
				},
			} {
				if status, text := n.postWith(t, x.path, x.body, x.headers...); status != x.status ||
					!strings.Contains(text, x.reply) {
					t.Errorf("%s %q %q: %d %s", x.path, x.body, x.headers, status, text)
				}
			}
			if again := n.openProducer(t, name, ""); again.Sequence != 11 || !isLater(again.Epoch, p.Epoch) {
				t.Errorf("opened again it is %+v, was %+v", again, p)
			}
			c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext(11), "late")))
			refusedAs(c, publish.CodeFenced)
			if status, text := n.postWith(t, "/pub?topic=t", "late", numbersOf(name, p.Epoch, 11)...); status != 409 ||
				!strings.Contains(text, "PRODUCER_FENCED: ") {
				t.Errorf("an earlier epoch: %d %s", status, text)
			}
			want := []string{
				"m0 a=b", "m1 a=b", "m2 a=b", "m3 ##json=[]", "m4 a=b", "m5", "m6", "m7", "m8 a=b", "m9 ##json=[]", "m10 x=y",
			}
			got := slices.DeleteFunc(storedIn(t, n, p.Partition)[len(before):], func(s string) bool {
				return strings.HasPrefix(s, "nobody's")
			})
			if !slices.Equal(got, want) {
				t.Errorf("partition %d has %q, want %q", p.Partition, got, want)
			}
		}
	})
}

// The partition is the one that is named, or the key's, or the name's: at the opening as at the publish.
func TestNumberedPartition(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 8)
		n := nodes[len(nodes)-1]
		topic, _ := n.e.Catalog().LookupTopic("t")
		key, name := "customer-7", "shop"
		keyed, own := topic.PartitionFor([]byte(key)), topic.PartitionFor([]byte(name))
		if keyed == own {
			t.Fatal("choose another key")
		}
		third := slices.IndexFunc(make([]int, 8), func(int) bool { return true })
		for third == keyed || third == own {
			third++
		}
		byName, byKey := n.openProducer(t, name, ""), n.openProducer(t, name, "&key="+key)
		named := n.openProducer(t, name, fmt.Sprint("&key=", key, "&partition=", third))
		if byName.Partition != own || byKey.Partition != keyed || named.Partition != third {
			t.Fatalf("opened in %d, %d and %d; want %d, %d and %d",
				byName.Partition, byKey.Partition, named.Partition, own, keyed, third)
		}
		publish := func(path, body string, epoch string, headers ...string) {
			t.Helper()
			if status, text := n.postWith(t, path, body, append(numbersOf(name, epoch, 0), headers...)...); status != 200 {
				t.Errorf("%s %s: %d %s", path, body, status, text)
			}
		}
		publish("/pub?topic=t", "by name", byName.Epoch)
		publish("/pub?topic=t&key="+key, "by key", byKey.Epoch)
		publish(fmt.Sprint("/pub?topic=t&key=", key, "&partition=", third), "named", named.Epoch)
		publish("/pub?topic=t", "by key", byKey.Epoch, "X-Penstock-Header-Key", key) // the same put: a repeat
		c := n.dial(t)
		ext := `{"key":"customer-7",` + numbers(name, byKey.Epoch, 1)[1:]
		c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext, "by key, too")))
		c.OK()
		for at, want := range map[int][]string{
			own: {"by name"}, third: {"named key=customer-7"},
			keyed: {"by key key=customer-7", "by key, too key=customer-7 a=b"},
		} {
			if got := storedIn(t, n, at); !slices.Equal(got, want) {
				t.Errorf("partition %d has %q, want %q", at, got, want)
			}
		}
		status, text := n.postWith(t, "/pub?topic=t&key=x", "x",
			append(numbersOf(name, 1, 0), "X-Penstock-Header-Key", "y")...)
		if status != 400 {
			t.Errorf("two keys: %d %s", status, text)
		}
		other := "b"
		for i := 0; topic.PartitionFor([]byte(other)) == keyed; i++ {
			other = fmt.Sprint("b", i)
		}
		c.Send("MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext, "x"),
			nsqtest.WithExt(`{"key":"`+other+`"}`, "x"))))
		refusedAs(c, "E_MPUB_FAILED")
	})
}

// What is wrong with the three headers costs nobody a message.
func TestNumberedBadValues(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	p := n.openProducer(t, "p", "")
	for _, ext := range []string{
		`{"penstock-producer":"p"}`,
		`{"penstock-producer":"p","penstock-epoch":"1"}`,
		`{"penstock-epoch":"1","penstock-sequence":"0"}`,
		numbers("", p.Epoch, 0),
		numbers(strings.Repeat("n", 256), p.Epoch, 0),
		numbers("p", -1, 0),
		numbers("p", "", 0),
		numbers("p", p.Epoch+"-0", 0),
		numbers("p", tenureOf(p.Epoch)+"-", 0),
		numbers("p", tenureOf(p.Epoch)+"--1", 0),
		numbers("p", tenureOf(p.Epoch)+"-+0", 0),
		numbers("p", p.Epoch, "4294967296"),
		numbers("p", p.Epoch, "x"),
		numbers("p", p.Epoch, 0)[:len(numbers("p", p.Epoch, 0))-1] + `,"penstock-other":"1"}`,
	} {
		c := n.dial(t)
		c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext, "x")))
		refusedAs(c, publish.CodeBadExt)
		c.Closed()
		if status, text := n.do(t, "POST", "/pub_ext?topic=t&ext="+url.QueryEscape(ext), "x"); status != 400 {
			t.Errorf("%s: %d %s", ext, status, text)
		}
	}
	good := numbers("p", p.Epoch, 0)
	for _, second := range []string{
		numbers("p", p.Epoch, 0), numbers("p", p.Epoch, 2), numbers("q", p.Epoch, 1), numbers("p", 9, 1),
		numbers("p", tenureOf(p.Epoch), 1),
	} {
		c := n.dial(t)
		c.Send("MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(good, "x"), nsqtest.WithExt(second, "x"))))
		refusedAs(c, publish.CodeBadExt)
	}
	c := n.dial(t)
	c.Send("MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(`{}`, "x"), nsqtest.WithExt(good, "x"))))
	refusedAs(c, publish.CodeBadExt)
	for _, headers := range [][]string{
		numbersOf("p", p.Epoch, "x"), numbersOf("p", p.Epoch, 0)[:4],
		append(numbersOf("p", p.Epoch, 0), "Penstock-Epoch", "2"),
		append(numbersOf("p", p.Epoch, 0), "X-Penstock-Header-Penstock-Sequence", "0"),
	} {
		for _, path := range []string{"/pub?topic=t", "/mpub?topic=t"} {
			if status, text := n.postWith(t, path, "x", headers...); status != 400 {
				t.Errorf("%s %q: %d %s", path, headers, status, text)
			}
		}
	}
	for query, status := range map[string]int{
		"topic=t": 400, "topic=t&producer=": 400, "producer=p": 400, "topic=t&producer=p&partition=x": 400,
		"topic=t&producer=p&partition=1": 400, "topic=t&producer=p&epoch=x": 400, "topic=t&producer=p&epoch=1": 400,
		"topic=t&producer=" + strings.Repeat("n", 256): 400,
		"topic=t%20&producer=p":                        400,
	} {
		if got, text := n.do(t, "POST", "/producer/open?"+query, ""); got != status {
			t.Errorf("%s: %d %s", query, got, text)
		}
	}
	if got := storedIn(t, n, 0); len(got) != 0 {
		t.Errorf("%q are stored", got)
	}
	// Numbers as JSON numbers are numbers, too.
	c = n.dial(t)
	c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(
		fmt.Sprintf(`{"n":7,"penstock-producer":"p","penstock-epoch":%s,"penstock-sequence":0}`, tenureOf(p.Epoch)), "x")))
	c.OK()
	if got := storedIn(t, n, 0); !slices.Equal(got, []string{`x n=7 ##json=["n"]`}) {
		t.Errorf("%q are stored", got)
	}
}

// Below feature level 3 a producer is refused by name, and nothing is stored.
func TestNumberedWithoutTheLevel(t *testing.T) {
	n := startNode(t, node.Options{MaxLevel: 2}, Options{})
	n.refused(t, "POST", "/producer/open?topic=t&producer=p", "", 400, "feature level 3")
	if status, text := n.postWith(t, "/pub?topic=t", "x", numbersOf("p", 1, 0)...); status != 400 ||
		!strings.Contains(text, "feature level 3") {
		t.Errorf("%d %s", status, text)
	}
	c := n.dial(t)
	c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(numbers("p", 1, 0), "x")))
	refusedAs(c, "E_PUB_FAILED")
	c.Closed()
	if got := storedIn(t, n, 0); len(got) != 0 {
		t.Errorf("%q are stored", got)
	}
}

// A publisher with several puts on their way, at a node that does not lead, loses the leader. It repeats what was not
// answered OK, and everything is stored once and in order.
//
// B17, B22.
func TestNumberedThroughAFailover(t *testing.T) {
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1"})
	makeChannel(t, nodes, "t", "c", 1)
	leader, n := bystander(t, nodes, "t")
	p := n.openProducer(t, "p", "")
	var ending sync.WaitGroup
	const total, inFlight = 400, 8
	answered := 0
	c := n.dial(t)
	for end := time.Now().Add(nsqtest.Patience); answered < total; {
		if time.Now().After(end) {
			t.Fatalf("only %d puts are answered", answered)
		}
		if answered >= total/4 && leader != nil {
			l := leader
			leader = nil
			ending.Go(func() { _ = l.e.Close() })
		}
		upTo := min(answered+inFlight, total)
		for i := answered; i < upTo; i++ {
			c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(numbers("p", p.Epoch, i), fmt.Sprint("m", i))))
		}
		for i := answered; i < upTo; i++ {
			kind, data, err := c.Frame(nsqtest.Patience)
			if err != nil || kind != nsqtest.FrameResponse || string(data) != "OK" {
				t.Logf("put %d: %d %s %v", i, kind, data, err)
				c.Conn.Close()
				c = n.dial(t)
				break
			}
			answered++
		}
	}
	ending.Wait()
	var want []string
	for i := range total {
		want = append(want, fmt.Sprint("m", i, " a=b"))
	}
	if got := storedIn(t, n, 0); !slices.Equal(got, want) {
		t.Errorf("%d messages are stored, want %d, once and in order: %q", len(got), total, got)
	}
}

// A topic is deleted and made anew, and gets more partitions, under publishers that number their messages and do not
// hear of it. Whatever is answered OK is stored, and nobody takes the name back from a later program.
func TestNumberedLifeOfATopic(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 1)
		n := nodes[len(nodes)-1]
		publish := func(query, body, epoch string, sequence int, want string) {
			t.Helper()
			nsqtest.Eventually(t, "an answer", func() bool {
				status, text := n.postWith(t, "/pub?topic=t"+query, body, numbersOf("shop", epoch, sequence)...)
				if status != 503 && !strings.Contains(text, want) {
					t.Errorf("%s, %d of %s: %d %s, want %s", body, sequence, epoch, status, text, want)
				}
				return status != 503
			})
		}
		first := n.openProducer(t, "shop", "")
		publish("", "before", first.Epoch, 0, "OK")
		n.post(t, "/topic/delete?topic=t", "")
		nsqtest.Eventually(t, "the topic is gone everywhere", func() bool {
			return !slices.ContainsFunc(nodes, func(n *testNode) bool { _, ok := n.e.Catalog().LookupTopic("t"); return ok })
		})
		makeChannel(t, nodes, "t", "c", 1)
		publish("", "nobody has opened it here", first.Epoch, 1, "PRODUCER_UNKNOWN")
		second := n.openProducer(t, "shop", "")
		publish("", "anew", second.Epoch, 0, "OK")
		publish("", "late", first.Epoch, 1, "PRODUCER_FENCED")
		publish("", "late", first.Epoch, 0, "PRODUCER_FENCED")
		status, text := n.do(t, "POST", "/producer/open?topic=t&producer=shop&epoch="+first.Epoch, "")
		if status != 409 || !strings.Contains(text, "PRODUCER_FENCED") {
			t.Errorf("the first program goes on: %d %s", status, text)
		}
		publish("", "gap", second.Epoch, 7, "from 1 to 6 are not stored")
		if got := storedIn(t, n, 0); !slices.Equal(got, []string{"anew"}) {
			t.Errorf("%q are stored", got)
		}

		key := "customer"
		for i := 0; batch.PartitionOf([]byte(key), 3) == 0; i++ {
			key = fmt.Sprint("customer-", i)
		}
		publish("&key="+key, "first of the key", second.Epoch, 1, "OK")
		n.post(t, "/topic/settings?topic=t", `{"version":0,"partitions":3}`)
		nsqtest.Eventually(t, "all nodes know three partitions", func() bool {
			return !slices.ContainsFunc(nodes, func(n *testNode) bool {
				topic, _ := n.e.Catalog().LookupTopic("t")
				return topic.Partitions() != 3
			})
		})
		moved := n.openProducer(t, "shop", "&epoch="+second.Epoch+"&key="+key)
		if moved.Partition == 0 || tenureOf(moved.Epoch) != tenureOf(second.Epoch) || moved.Sequence != 0 {
			t.Fatalf("opened %+v, was %+v", moved, second)
		}
		publish("&key="+key, "second of the key", moved.Epoch, 0, "OK")
		publish("&key="+key, "second of the key", second.Epoch, 0, "the message belongs to partition") // the same content
		publish("&key="+key, "other", tenureOf(second.Epoch), 0, "PRODUCER_SEQUENCE")
		if got := storedIn(t, n, moved.Partition); !slices.Equal(got, []string{"second of the key key=" + key}) {
			t.Errorf("%q are stored", got)
		}
	})
}

// A named producer is of the token that opened it, by every way to publish and through every node, and after a change
// of the leader: another token that may publish as well, and knows epoch and number, is refused by name. The owner's
// own message is stored, and none of the other's.
func TestNumberedOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.toml")
	const grant = "permissions = [\"publish\"]\ntopics = [\"t\"]"
	authtest.Write(t, file, authtest.Token("billing", "billing", grant)+authtest.Token("mallory", "mallory", grant))
	o := Options{BroadcastAddress: "127.0.0.1", Auth: auth.Options{File: file}}
	one := []*testNode{startNode(t, node.Options{}, o)}
	for name, nodes := range map[string][]*testNode{"one": one, "three": startCluster(t, 3, o)} {
		t.Run(name, func(t *testing.T) {
			leader, n := bystander(t, nodes, "t")
			if n == nil {
				n = leader
			}
			as := func(token string, headers ...string) []string {
				return append([]string{"Authorization", "Bearer " + token}, headers...)
			}
			opens := func(n *testNode, token, query string) (p api.ProducerOpened, text string) {
				status, text := 0, ""
				nsqtest.Eventually(t, "the leader to answer", func() bool {
					status, text = n.postWith(t, "/producer/open?topic=t&producer=billing-1"+query, "", as(token)...)
					return status != 503 && !strings.Contains(text, "feature level")
				})
				if status == 200 && json.Unmarshal([]byte(text), &p) != nil {
					t.Fatal(text)
				}
				return p, text
			}
			p, text := opens(n, "billing", "")
			if p.Epoch == "" {
				t.Fatal(text)
			}
			sequence := 0
			publishes := func(n *testNode) {
				t.Helper()
				status, text := 0, ""
				nsqtest.Eventually(t, "the leader to answer", func() bool {
					status, text = n.postWith(t, "/pub?topic=t", fmt.Sprint("m", sequence),
						as("billing", numbersOf("billing-1", p.Epoch, sequence)...)...)
					return status != 503
				})
				if status != 200 {
					t.Errorf("the owner's message %d: %d %s", sequence, status, text)
				}
				sequence++
			}
			attack := func(n *testNode) {
				t.Helper()
				for _, query := range []string{"", "&epoch=" + p.Epoch} {
					if _, text := opens(n, "mallory", query); !strings.Contains(text, "PRODUCER_OWNER: ") {
						t.Errorf("opened by another: %s", text)
					}
				}
				ext := numbers("billing-1", p.Epoch, sequence)
				for _, path := range []string{
					"/pub?topic=t", "/mpub?topic=t", "/pub_ext?topic=t&ext=" + url.QueryEscape(ext),
					"/pubtrace?topic=t&trace_id=1",
				} {
					headers := numbersOf("billing-1", p.Epoch, sequence)
					if strings.Contains(path, "&ext=") {
						headers = nil
					}
					if status, text := n.postWith(t, path, "evil", as("mallory", headers...)...); status != 409 ||
						!strings.Contains(text, "PRODUCER_OWNER: ") {
						t.Errorf("%s: %d %s", path, status, text)
					}
				}
				c := n.dial(t)
				defer c.Conn.Close()
				c.Send(authCommand("mallory"))
				if kind, text, err := c.Frame(nsqtest.Patience); err != nil || kind != nsqtest.FrameResponse {
					t.Fatalf("AUTH: %s %v", text, err)
				}
				c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext, "evil")) + "MPUB_EXT t\n" +
					nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext, "evil"))))
				refusedAs(c, publish.CodeProducerOwner)
				refusedAs(c, publish.CodeProducerOwner)
			}
			publishes(n)
			for _, n := range nodes {
				attack(n)
				publishes(n)
			}
			if len(nodes) > 1 {
				_ = leader.e.Close()
				publishes(n)
				attack(n)
				publishes(n)
			}
			got := storedIn(t, n, 0)
			if len(got) != sequence {
				t.Fatalf("%d messages are stored, want %d: %q", len(got), sequence, got)
			}
			for i, m := range got {
				if m != fmt.Sprint("m", i) {
					t.Errorf("message %d is %q", i, m)
				}
			}
		})
	}
}
