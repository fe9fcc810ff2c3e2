package wire

import (
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/netproto"
)

// The types of the consumer role. The request id of the Subscribe names the subscription in all of them but Sync and
// Synced.
const (
	TypeSubscribe     netproto.Type = 77 // to a leader: consume a channel; the request id names the subscription
	TypeSubscribed    netproto.Type = 78 // its answer
	TypeDeliver       netproto.Type = 79 // from the leader: messages
	TypeCredit        netproto.Type = 80 // to the leader: how many more messages it may send
	TypeFinish        netproto.Type = 81 // to the leader: these messages are done
	TypeFinishThrough netproto.Type = 82 // to the leader: a delivery and all before it are done
	TypeRequeue       netproto.Type = 83 // to the leader: deliver these messages again
	TypeTouch         netproto.Type = 84 // to the leader: these messages need more time
	TypeRefused       netproto.Type = 85 // from the leader: what it did not do of the four before
	TypeSync          netproto.Type = 86 // to the leader: say when all that was finished is stored
	TypeSynced        netproto.Type = 87 // its answer
	TypeSubscribeEnd  netproto.Type = 88 // either way: the subscription is closed; from the leader with the reason

	TypeDeliverOrdered netproto.Type = 89 // from the leader: messages of an ordered channel, and a permit
	// TypeRecall, from the leader: begin none of a partition's deliveries so far any more. The same back: it is done.
	TypeRecall netproto.Type = 90
)

// Limits of the fields of the consumer role.
const (
	MaxIDCount       = 8192     // in one Finish, Requeue, Touch or Refused
	MaxDeliveryCount = 1 << 14  // in one Deliver
	MaxMessageBytes  = 16 << 20 // of a body, of the key and of the value of a header

	// DeliverBytes is what a leader sends in one Deliver at most, unless the last message makes it longer.
	DeliverBytes = 256 << 10

	// MaxCreditBytes is the most credit that a subscription or a reader can have; a node cuts more to it.
	MaxCreditBytes = 1 << 30

	// NoPartition in Subscribe.Partition stands for all partitions that the node leads, now and later.
	NoPartition = 1<<32 - 1
)

// Subscribe begins to consume a channel, from the partitions that the node leads.
type Subscribe struct {
	Topic   uuid.UUID
	Channel string
	Tag     string // only messages with this tag; empty: those without a tag, and those whose tag nobody asks for
	Create  bool   // whether a channel that does not exist is created
	// From and Value say where a channel that is created begins. They mean nothing for one that exists.
	From       From
	Value      int64
	SampleRate uint8  // percent of the messages that are delivered, at most 100; 0: all
	Partition  uint32 // or NoPartition
	TimeoutMs  uint32 // how long a message may be in flight before it is delivered again; 0: as the node has it
	// Messages is how many messages may be in flight to this subscription at a time.
	Messages uint32
	// Bytes is how many bytes of deliveries the leader may send; it goes on while any are left. See DeliverySize.
	Bytes uint32
	// Stamp is the time of the client's clock; see Permit. 0: the client knows no permits.
	Stamp uint64
}

func (m *Subscribe) code(c *coder) {
	c.uuid(&m.Topic)
	c.text(&m.Channel, MaxNameBytes)
	c.text(&m.Tag, MaxNameBytes)
	c.yes(&m.Create)
	if c.u8((*uint8)(&m.From)); m.From > FromDefault {
		c.fail("place %d", m.From)
	}
	c.i64(&m.Value)
	if c.u8(&m.SampleRate); m.SampleRate > 100 {
		c.fail("a sample of %d percent", m.SampleRate)
	}
	c.u32(&m.Partition)
	c.u32(&m.TimeoutMs)
	c.u32(&m.Messages)
	c.u32(&m.Bytes)
	c.last(&m.Stamp)
}

// Subscribed answers a Subscribe. Any other outcome has the payload of Outcome, and then there is no subscription.
type Subscribed struct {
	TimeoutMs    uint32 // in force
	MaxTimeoutMs uint32 // how long a message may be in flight, however often it is touched
}

func (m *Subscribed) code(c *coder) {
	c.u32(&m.TimeoutMs)
	c.u32(&m.MaxTimeoutMs)
}

// Delivery is one message of a Deliver.
type Delivery struct {
	ID        uint64
	Timestamp int64      // when it was published, ns since 1970
	Attempts  uint16     // deliveries so far, this one included; it stops growing at 32767
	Headers   []batch.KV // in the order in which they were published
	Body      []byte
}

// deliveryHeadBytes is what a delivery has besides its headers and its body.
const deliveryHeadBytes = 8 + 8 + 2 + 4 + 4

// DeliverySize is how many bytes a delivery takes in a Deliver, and so how much credit it costs.
func DeliverySize(d *Delivery) int {
	n := deliveryHeadBytes + len(d.Body)
	for i := range d.Headers {
		n += 4 + len(d.Headers[i].Key) + 4 + len(d.Headers[i].Value)
	}
	return n
}

// AppendDelivery appends a delivery to the payload of a Deliver that BeginDeliver has begun. It allocates nothing if
// dst has room for DeliverySize more bytes. EndDeliver says how many were appended.
func AppendDelivery(dst []byte, d *Delivery) []byte {
	le := binary.LittleEndian
	at := len(dst)
	dst = slices.Grow(dst, deliveryHeadBytes+len(d.Body))
	head := dst[at : at+deliveryHeadBytes] // at once: this runs for every message
	le.PutUint64(head, d.ID)
	le.PutUint64(head[8:], uint64(d.Timestamp))
	le.PutUint16(head[16:], d.Attempts)
	le.PutUint32(head[18:], uint32(len(d.Headers)))
	if len(d.Headers) == 0 {
		le.PutUint32(head[22:], uint32(len(d.Body)))
		return append(dst[:at+deliveryHeadBytes], d.Body...)
	}
	dst = dst[:at+deliveryHeadBytes-4]
	for i := range d.Headers {
		kv := &d.Headers[i]
		dst = append(le.AppendUint32(dst, uint32(len(kv.Key))), kv.Key...)
		dst = append(le.AppendUint32(dst, uint32(len(kv.Value))), kv.Value...)
	}
	return append(le.AppendUint32(dst, uint32(len(d.Body))), d.Body...)
}

// deliverHeadBytes is the length of a Deliver without deliveries.
const deliverHeadBytes = 8 + 4

// BeginDeliver appends the beginning of a Deliver, whose first delivery has the number first.
func BeginDeliver(dst []byte, first uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, first), 0, 0, 0, 0)
}

// EndDeliver completes a Deliver to which count deliveries were appended. p begins where BeginDeliver has appended.
func EndDeliver(p []byte, count int) { binary.LittleEndian.PutUint32(p[8:], uint32(count)) }

// Deliveries walks the payload of a Deliver: messages of a subscription, in the order of their delivery. Deliveries are
// numbered from 1 in each subscription; the number of the first one is First, those of the others follow. A number may
// be missing between two frames. It is reusable, and allocates nothing except to grow its list of headers.
type Deliveries struct {
	First uint64 // number of the first delivery
	Count int    // deliveries in the frame

	c    coder
	left int
	d    Delivery
}

// Reset begins with a payload, which it borrows until the last Next.
func (it *Deliveries) Reset(p []byte) error {
	it.c = coder{p: p}
	var count uint32
	it.c.u64(&it.First)
	if it.c.u32(&count); count > MaxDeliveryCount {
		it.c.fail("a list of %d elements, at most %d are allowed", count, MaxDeliveryCount)
	}
	if it.Count, it.left = int(count), int(count); it.c.err != nil {
		it.Count, it.left = 0, 0
	}
	return it.c.err
}

// Next returns the next delivery. It returns nil at the end, and when the payload is damaged, which Err tells. The
// following call overwrites it, its list of headers included; body, keys and values are borrowed from the payload.
func (it *Deliveries) Next() *Delivery {
	if it.left == 0 {
		return nil
	}
	it.left--
	d, c := &it.d, &it.c
	if len(c.p) >= deliveryHeadBytes { // without headers, which is the usual case: this runs for every message
		le, p := binary.LittleEndian, c.p
		if n := int(le.Uint32(p[22:])); le.Uint32(p[18:]) == 0 && n <= min(MaxMessageBytes, len(p)-deliveryHeadBytes) {
			d.ID, d.Timestamp, d.Attempts = le.Uint64(p), int64(le.Uint64(p[8:])), le.Uint16(p[16:])
			end := deliveryHeadBytes + n
			d.Headers, d.Body, c.p = d.Headers[:0], p[deliveryHeadBytes:end:end], p[end:]
			return d
		}
	}
	head := c.next(8 + 8 + 2 + 4)
	if head == nil {
		return nil
	}
	le := binary.LittleEndian
	d.ID, d.Timestamp, d.Attempts = le.Uint64(head), int64(le.Uint64(head[8:])), le.Uint16(head[16:])
	if n := le.Uint32(head[18:]); n > batch.MaxHeaderCount {
		c.fail("a list of %d elements, at most %d are allowed", n, batch.MaxHeaderCount)
		return nil
	} else if d.Headers = d.Headers[:0]; n > 0 {
		for range n {
			d.Headers = append(d.Headers, batch.KV{Key: c.bytes(MaxMessageBytes), Value: c.bytes(MaxMessageBytes)})
		}
	}
	if d.Body = c.bytes(MaxMessageBytes); c.err != nil {
		return nil
	}
	return d
}

// Err returns the damage because of which Next ended too early, or nil.
func (it *Deliveries) Err() error { return it.c.err }

// Credit lets the leader send more.
type Credit struct {
	Messages uint32 // how many messages may be in flight from now on
	Bytes    uint32 // of deliveries, in addition to what the leader may send already
	Stamp    uint64 // see Permit; the leader answers it with a permit. 0: none is asked for
}

func (m *Credit) code(c *coder) {
	c.u32(&m.Messages)
	c.u32(&m.Bytes)
	c.last(&m.Stamp)
}

// Permit is the beginning of a DeliverOrdered; the payload of a Deliver follows, maybe without deliveries. It says
// until when the client may begin to handle deliveries of the subscription, all that it has and has not recalled.
//
// Clocks are not compared. The client's clock showed Stamp before the leader got it, AgeMs before the frame was made.
// So at Stamp + AgeMs by the client's clock, the frame was not yet made, and the permit ends WithinMs later.
type Permit struct {
	Stamp    uint64 // the newest of the client, ns by its own clock
	AgeMs    uint32 // since the leader got it
	WithinMs uint32 // for so long; 0: the leader gives no permit now
}

// PermitBytes is the length of a Permit.
const PermitBytes = 8 + 4 + 4

func (m *Permit) code(c *coder) {
	c.u64(&m.Stamp)
	c.u32(&m.AgeMs)
	c.u32(&m.WithinMs)
}

// Put writes the permit over the first PermitBytes of p.
func (m *Permit) Put(p []byte) {
	le := binary.LittleEndian
	le.PutUint64(p, m.Stamp)
	le.PutUint32(p[8:], m.AgeMs)
	le.PutUint32(p[12:], m.WithinMs)
}

// Recall is about the deliveries of a partition up to a number.
type Recall struct {
	Partition uint32
	Number    uint64 // see Deliver
}

func (m *Recall) code(c *coder) {
	c.u32(&m.Partition)
	c.u64(&m.Number)
}

// Handle names a delivery of a subscription. What a client says of it concerns no other delivery, not even one of the
// same message.
type Handle struct {
	Number uint64 // see Deliver
	ID     uint64 // of the delivery's message
}

// Handles is the payload of Finish and Touch. Decode uses the memory of the list again.
type Handles struct{ Deliveries []Handle }

func (m *Handles) code(c *coder) {
	if reuse(c, &m.Deliveries, MaxIDCount, 16) {
		for i := range m.Deliveries {
			c.u64(&m.Deliveries[i].Number)
			c.u64(&m.Deliveries[i].ID)
		}
	}
}

// FinishThrough finishes the delivery with a number, and all deliveries of the subscription before it that are still in
// flight. It never finishes a later delivery, not even one of the same message. If the delivery itself is not in flight
// any more, it is refused with ID, and those before it are finished all the same.
type FinishThrough struct {
	Number uint64 // see Deliver
	ID     uint64 // of that delivery's message; only the answer has it
}

func (m *FinishThrough) code(c *coder) {
	c.u64(&m.Number)
	c.u64(&m.ID)
}

// Requeue gives messages back. Decode uses the memory of the list again.
type Requeue struct{ Messages []Delayed }

// Delayed is one delivery of a Requeue.
type Delayed struct {
	Handle
	DelayMs uint32 // before the next delivery
}

func (m *Requeue) code(c *coder) {
	if reuse(c, &m.Messages, MaxIDCount, 20) {
		for i := range m.Messages {
			c.u64(&m.Messages[i].Number)
			c.u64(&m.Messages[i].ID)
			c.u32(&m.Messages[i].DelayMs)
		}
	}
}

// Refused lists what a leader did not do of the client's Finish, FinishThrough, Requeue and Touch.
type Refused struct{ Messages []Refusal }

// Refusal is one message of a Refused. Kind is the type of the request.
//
// StatusRejected: the message is not in flight to this subscription; it timed out, for example, and comes again.
// StatusFull: nothing was done for lack of room; repeat it later, or let the message time out. A delivery that was to
// be requeued is in flight then, so a FinishThrough of a later one would finish it.
// StatusNotLeader, of a FinishThrough: nothing was done, not even for the deliveries before it, which come again.
type Refusal struct {
	Handle
	Kind   uint16
	Status netproto.Status
}

func (m *Refused) code(c *coder) {
	list(c, &m.Messages, MaxIDCount, 20, func(c *coder, r *Refusal) {
		c.u64(&r.Number)
		c.u64(&r.ID)
		c.u16(&r.Kind)
		c.u16((*uint16)(&r.Status))
	})
}

// Sync asks the leader to answer once every Finish, FinishThrough and Requeue that it received before from this
// subscription is in the log on every replica that must have it.
type Sync struct{ Subscription uint64 }

func (m *Sync) code(c *coder) { c.u64(&m.Subscription) }
