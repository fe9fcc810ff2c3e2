package native

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/message"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// Whatever is refused because of a limit is told the value, the limit and the setting, or that there is none.
func TestRefusalsNameTheLimit(t *testing.T) {
	w := serveEngine(t, node.Options{
		DataPath: t.TempDir(), Logger: quiet, MaxMessageBytes: 1000, MaxBatchBytes: 3000, MaxHeaderBytes: 500,
		MaxChannels: 2,
	}, func(o *Options) {
		o.MaxConnReaders, o.MaxReaders = 1, 2
		o.MaxConnSubscriptions, o.MaxSubscriptions = 3, 4
		o.MaxConnections = 3
	})
	topic, _ := stock(t, w, 0)
	c := w.dial()
	p := c.openProducer(topic.ID(), 0, "")
	says := func(got wire.Outcome, want string) {
		t.Helper()
		if !strings.Contains(got.Text, want) {
			t.Errorf("it is told %q, without %q", got.Text, want)
		}
	}
	whole := func(rs ...batch.Record) []byte {
		b := batch.Builder{ProducerID: p.ID, ProducerEpoch: p.Epoch}
		for i := range rs {
			if err := b.Add(&rs[i]); err != nil {
				t.Fatal(err)
			}
		}
		sealed, err := b.Seal(1)
		if err != nil {
			t.Fatal(err)
		}
		return sealed
	}
	record := func(body int, headers ...batch.KV) batch.Record {
		return batch.Record{Body: make([]byte, body), Headers: headers}
	}
	text := func(n int) []byte { return []byte(strings.Repeat("h", n)) }
	for _, x := range []struct {
		sealed []byte
		status netproto.Status
		want   string
	}{
		{
			whole(record(1001)), netproto.StatusTooBig,
			"the size of a message in bytes is 1001, and at most 1000 is allowed: see the node's setting max-message-bytes",
		},
		{
			make([]byte, 3001), netproto.StatusTooBig,
			"the size of the batch in bytes is 3001, and at most 3000 is allowed: see the node's setting max-batch-bytes",
		},
		{
			whole(record(1, batch.KV{Key: text(1), Value: text(500)})), netproto.StatusTooBig,
			"is 501, and at most 500 is allowed: see the node's setting max-header-bytes",
		},
		{
			whole(record(1, batch.KV{Key: text(257)})), netproto.StatusRejected,
			"header's name in bytes is 257, and at most 256 is allowed, which no setting changes",
		},
		{
			whole(record(1, slices.Repeat([]batch.KV{{Key: text(1)}}, message.MaxHeaderCount+1)...)), netproto.StatusRejected,
			"headers of a message is 249, and at most 248 is allowed, which no setting changes",
		},
	} {
		says(c.refusal(c.publish(topic.ID(), 0, x.sealed), wire.TypeProduced, x.status), x.want)
	}

	if _, err := topic.ConfigureAs(t.Context(), "", meta.TopicSettings{QuotaCount: 1}); err != nil {
		t.Fatal(err)
	}
	says(c.refusal(c.publish(topic.ID(), 0, whole(record(1), record(1))), wire.TypeProduced, netproto.StatusFull),
		"unconfirmed messages is 2, and at most 1 is allowed: see the topic's setting quota-count")

	read := &wire.Read{Topic: topic.ID(), From: wire.FromNewest, Credit: 100}
	c.send(wire.TypeRead, read)
	c.answer() // where it begins
	says(c.refusal(c.send(wire.TypeRead, read), wire.TypeReadEnd, netproto.StatusFull),
		"the connection's open readers is 2, and at most 1 is allowed, which no setting changes; repeat it later")
	c.subscribe(topic, "a", nil)
	c.subscribe(topic, "c", nil)
	says(c.refusal(c.sendSubscribe(topic, "d", nil), wire.TypeSubscribed, netproto.StatusFull),
		"the topic's channels is 3, and at most 2 is allowed: see the node's setting max-channels")
	c.subscribe(topic, "a", nil)
	says(c.refusal(c.sendSubscribe(topic, "a", nil), wire.TypeSubscribed, netproto.StatusFull),
		"the connection's open subscriptions is 4, and at most 3 is allowed")
	other := w.dialFrom("127.0.0.2")
	other.subscribe(topic, "a", nil)
	says(other.refusal(other.sendSubscribe(topic, "a", nil), wire.TypeSubscribed, netproto.StatusFull),
		"open subscriptions of all connections is 5, and at most 4 is allowed")
	w.dial()
	var refused *netproto.RefusedError
	if _, err := w.try(nil); !errors.As(err, &refused) ||
		!strings.Contains(refused.Text, "3 connections are open, the most that the port may have (max-connections)") {
		t.Errorf("a connection too many: %v", err)
	}
}

// Limits that change hold for the connections that come; those that are open keep what they were told.
func TestChangedLimitsHold(t *testing.T) {
	w := serveEngine(t, node.Options{DataPath: t.TempDir(), Logger: quiet}, func(o *Options) { o.MaxConnections = 1 })
	first := w.dial()
	told := first.c.Peer().WindowBytes
	if _, err := w.try(nil); err == nil {
		t.Fatal("a second connection is not refused")
	}
	o := *w.s.now.Load()
	o.MaxConnections, o.MaxConnInFlightBytes, o.HandshakeTimeout = 2, 1<<20, patience
	w.s.Change(o)
	second := w.dial()
	if got := second.c.Peer().WindowBytes; got != 1<<20/8*7 || got >= told {
		t.Errorf("it is told %d bytes, the first was told %d", got, told)
	}
	for _, x := range w.s.all() {
		if most := x.mostBytes; most != 1<<20 && most != 16<<20 {
			t.Errorf("a session may have %d bytes without an answer", most)
		}
	}
	if _, err := w.try(nil); err == nil {
		t.Error("a third connection is not refused")
	}
}
