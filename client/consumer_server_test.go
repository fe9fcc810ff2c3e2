package client

import (
	"slices"
	"time"

	"penstock/batch"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// testChannel is what the nodes of a testCluster know of a channel: what was delivered, and is not finished.
type testChannel struct {
	next     map[*testPart]int // of its messages
	again    []ID              // to be delivered once more
	attempts map[ID]int
	finished map[ID]int
	from     wire.From // of the Subscribe that created it
	timeout  time.Duration
}

// testSub is a subscription at a node.
type testSub struct {
	node    *testNode
	conn    *netproto.Conn
	request uint64
	ask     wire.Subscribe
	topic   *testTopic
	channel *testChannel
	credit  int
	number  uint64
	flight  []testFlight
	stamp   uint64
}

type testFlight struct {
	id     ID
	number uint64
}

// consume serves the frames of consumers. The caller holds the cluster's mu.
func (n *testNode) consume(c *netproto.Conn, s *testSession, f *netproto.Received) error {
	sub := s.subs[f.Request]
	switch f.Type {
	case wire.TypeSubscribe:
		return n.subscribe(c, s, f)
	case wire.TypeSync:
		var m wire.Sync
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		if n.cluster.holdSyncs {
			n.cluster.heldSyncs++
			return nil
		}
		status := netproto.StatusOK
		if s.subs[m.Subscription] == nil || n.cluster.deafToSync {
			status = netproto.StatusUnknown
		}
		n.send(c, wire.TypeSynced, f.Request, status, wire.Append(nil, new(wire.Outcome)))
		return nil
	}
	if sub == nil {
		return nil
	}
	var refused []wire.Refusal
	refuse := func(h wire.Handle) {
		refused = append(refused, wire.Refusal{Handle: h, Kind: uint16(f.Type), Status: netproto.StatusRejected})
	}
	switch f.Type {
	case wire.TypeCredit:
		var m wire.Credit
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		sub.ask.Messages = m.Messages
		if sub.stamp = max(sub.stamp, m.Stamp); m.Stamp != 0 {
			out := sub.begin()
			wire.EndDeliver(out[wire.PermitBytes:], 0)
			n.send(c, wire.TypeDeliverOrdered, f.Request, netproto.StatusOK, out)
		}
		sub.credit += int(m.Bytes)
	case wire.TypeFinish, wire.TypeTouch:
		var m wire.Handles
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		for _, h := range m.Deliveries {
			if at := sub.find(h); at < 0 {
				refuse(h)
			} else if f.Type == wire.TypeFinish {
				sub.finish(at)
			}
		}
	case wire.TypeFinishThrough:
		var m wire.FinishThrough
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		if h := wire.Handle(m); sub.find(h) < 0 {
			refuse(h)
		}
		for len(sub.flight) > 0 && sub.flight[0].number <= m.Number {
			sub.finish(0)
		}
	case wire.TypeRequeue:
		var m wire.Requeue
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		for _, x := range m.Messages {
			if at := sub.find(x.Handle); at < 0 {
				refuse(x.Handle)
			} else if n.cluster.noRoom {
				refuse(x.Handle)
				refused[len(refused)-1].Status = netproto.StatusFull
			} else {
				sub.flight = slices.Delete(sub.flight, at, at+1)
				sub.channel.again = append(sub.channel.again, ID(x.ID))
			}
		}
	case wire.TypeRecall:
		var m wire.Recall
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		n.cluster.recalled = append(n.cluster.recalled, m)
	case wire.TypeSubscribeEnd:
		n.unsubscribe(s, sub)
		request := f.Request // f is borrowed
		end := func() {
			n.send(c, wire.TypeSubscribeEnd, request, netproto.StatusOK, wire.Append(nil, new(wire.Outcome)))
		}
		if n.cluster.holdEnds {
			n.cluster.ends = append(n.cluster.ends, end)
		} else {
			end()
		}
	}
	if len(refused) > 0 {
		n.send(c, wire.TypeRefused, f.Request, netproto.StatusOK, wire.Append(nil, &wire.Refused{Messages: refused}))
	}
	n.cluster.deliverAll()
	return nil
}

func (n *testNode) subscribe(c *netproto.Conn, s *testSession, f *netproto.Received) error {
	sub := &testSub{node: n, conn: c, request: f.Request}
	if err := wire.Decode(f.Payload, &sub.ask); err != nil {
		return err
	}
	for _, t := range n.cluster.topics {
		if t.id == sub.ask.Topic && slices.ContainsFunc(t.parts, func(p *testPart) bool { return p.leader == n.index }) {
			sub.topic = t
		}
	}
	if status := n.cluster.refuseSubscribe; sub.topic == nil || status != netproto.StatusOK {
		out := wire.Outcome{Text: "refused by the test"}
		if sub.topic == nil {
			status, out.Address = netproto.StatusNotLeader, n.cluster.leaderOf(&sub.ask)
		}
		n.send(c, wire.TypeSubscribed, f.Request, status, wire.Append(nil, &out))
		return nil
	}
	sub.credit, sub.stamp = int(sub.ask.Bytes), sub.ask.Stamp
	sub.channel = n.cluster.channels[sub.ask.Channel]
	if sub.channel == nil {
		sub.channel = &testChannel{
			next: map[*testPart]int{}, attempts: map[ID]int{}, finished: map[ID]int{}, from: sub.ask.From,
		}
		n.cluster.channels[sub.ask.Channel] = sub.channel
	}
	s.subs[f.Request] = sub
	timeout := time.Minute
	if sub.ask.TimeoutMs > 0 {
		timeout = time.Duration(sub.ask.TimeoutMs) * time.Millisecond
	}
	sub.channel.timeout = timeout
	m := wire.Subscribed{TimeoutMs: uint32(timeout.Milliseconds()), MaxTimeoutMs: 900_000}
	n.send(c, wire.TypeSubscribed, f.Request, netproto.StatusOK, wire.Append(nil, &m))
	n.cluster.deliverAll()
	return nil
}

// leaderOf returns the address of the node that leads the partition of a Subscribe; empty: it names none, or none
// leads.
func (cl *testCluster) leaderOf(ask *wire.Subscribe) string {
	for _, t := range cl.topics {
		if t.id == ask.Topic && ask.Partition != wire.NoPartition && t.parts[ask.Partition].leader >= 0 {
			return cl.nodes[t.parts[ask.Partition].leader].address
		}
	}
	return ""
}

// unsubscribe ends a subscription: messages in flight are delivered to others.
func (n *testNode) unsubscribe(s *testSession, sub *testSub) {
	for _, f := range sub.flight {
		sub.channel.again = append(sub.channel.again, f.id)
	}
	sub.flight = nil
	delete(s.subs, sub.request)
}

func (sub *testSub) find(h wire.Handle) int {
	return slices.IndexFunc(sub.flight, func(f testFlight) bool { return f.id == ID(h.ID) && f.number == h.Number })
}

// of returns the delivery of a message.
func (sub *testSub) of(id ID) int {
	return slices.IndexFunc(sub.flight, func(f testFlight) bool { return f.id == id })
}

func (sub *testSub) finish(at int) {
	sub.channel.finished[sub.flight[at].id]++
	sub.flight = slices.Delete(sub.flight, at, at+1)
}

// expire takes a delivery's time for over.
func (sub *testSub) expire(at int) {
	sub.channel.again = append(sub.channel.again, sub.flight[at].id)
	sub.flight = slices.Delete(sub.flight, at, at+1)
}

// subs returns all subscriptions.
func (c *testCluster) subs() (out []*testSub) {
	for _, n := range c.nodes {
		for _, s := range n.conns {
			for _, sub := range s.subs {
				out = append(out, sub)
			}
		}
	}
	return out
}

// deliverAll sends every subscription what it may get.
func (c *testCluster) deliverAll() {
	for _, sub := range c.subs() {
		for sub.deliver() {
		}
	}
}

// deliver sends a frame. It returns false if there is nothing to send, or not now.
func (sub *testSub) deliver() bool {
	out, count := sub.begin(), 0
	for len(sub.flight) < int(sub.ask.Messages) && sub.credit > 0 && count < 1000 {
		id, ok := sub.pick()
		if !ok {
			break
		}
		ch := sub.channel
		ch.attempts[id]++
		sub.number++
		sub.flight = append(sub.flight, testFlight{id, sub.number})
		m := sub.topic.parts[id.Partition()].messages()[id.MsgID()]
		d := wire.Delivery{
			ID: uint64(id), Timestamp: m.Time.UnixNano(), Attempts: uint16(ch.attempts[id]), Body: m.Body,
		}
		for _, h := range m.Headers {
			d.Headers = append(d.Headers, batch.KV(h))
		}
		sub.credit -= wire.DeliverySize(&d)
		out, count = wire.AppendDelivery(out, &d), count+1
	}
	if count == 0 {
		return false
	}
	typ, head := wire.TypeDeliver, 0
	if sub.node.cluster.permits != nil {
		typ, head = wire.TypeDeliverOrdered, wire.PermitBytes
	}
	wire.EndDeliver(out[head:], count)
	sub.node.send(sub.conn, typ, sub.request, netproto.StatusOK, out)
	return true
}

// begin begins a Deliver, or a DeliverOrdered if the cluster gives permits.
func (sub *testSub) begin() []byte {
	var out []byte
	if permits := sub.node.cluster.permits; permits != nil {
		out = wire.Append(nil, &wire.Permit{Stamp: sub.stamp, WithinMs: permits[sub.node.index]})
	}
	return wire.BeginDeliver(out, sub.number+1)
}

// pick returns the next message for the subscription.
func (sub *testSub) pick() (ID, bool) {
	ch := sub.channel
	leads := func(p int) bool {
		return sub.topic.parts[p].leader == sub.node.index &&
			(sub.ask.Partition == wire.NoPartition || int(sub.ask.Partition) == p)
	}
	for i, id := range ch.again {
		if leads(int(id.Partition())) {
			ch.again = slices.Delete(ch.again, i, i+1)
			return id, true
		}
	}
	for i, p := range sub.topic.parts {
		if at := ch.next[p]; leads(i) && at < int(p.next) {
			ch.next[p]++
			return batch.MakeID(uint32(i), batch.MsgID(at)), true
		}
	}
	return 0, false
}

// messages decodes what the partition stores.
func (p *testPart) messages() []Message {
	for ; p.read < len(p.batches); p.read++ {
		b := p.batches[p.read]
		var h batch.Header
		if err := h.Decode(b); err != nil {
			panic(err)
		}
		records, err := batch.DecompressBody(&h, b[batch.HeaderBytes:], nil)
		if err != nil {
			panic(err)
		}
		var it batch.RecordIter
		it.Reset(&h, records)
		for r, ok := it.Next(); ok; r, ok = it.Next() {
			m := Message{Body: r.Body, Time: time.Unix(0, h.Created)}
			for _, h := range r.Headers {
				m.Headers = append(m.Headers, Header(h))
			}
			p.decoded = append(p.decoded, m)
		}
	}
	return p.decoded
}
