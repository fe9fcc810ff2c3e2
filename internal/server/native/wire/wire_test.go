package wire

import (
	"bytes"
	"errors"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/netproto"
)

// Deliver is the message that BeginDeliver, AppendDelivery and EndDeliver write, and Deliveries reads.
type Deliver struct {
	First      uint64
	Deliveries []Delivery
}

// DeliverOrdered is a Deliver behind a permit.
type DeliverOrdered struct {
	Stamp           uint64
	AgeMs, WithinMs uint32
	First           uint64
	Deliveries      []Delivery
}

func (m *DeliverOrdered) code(c *coder) {
	p, d := Permit{m.Stamp, m.AgeMs, m.WithinMs}, Deliver{m.First, m.Deliveries}
	p.code(c)
	if c.writing {
		var put [PermitBytes]byte
		if p.Put(put[:]); !bytes.Equal(put[:], c.p[len(c.p)-PermitBytes:]) {
			c.fail("Put writes % x", put)
		}
	}
	d.code(c)
	*m = DeliverOrdered{p.Stamp, p.AgeMs, p.WithinMs, d.First, d.Deliveries}
}

func (m *Deliver) code(c *coder) {
	if c.writing {
		if len(m.Deliveries) > MaxDeliveryCount {
			c.fail("%d deliveries", len(m.Deliveries))
			return
		}
		at := len(c.p)
		c.p = BeginDeliver(c.p, m.First)
		for i := range m.Deliveries {
			c.p = AppendDelivery(c.p, &m.Deliveries[i])
		}
		EndDeliver(c.p[at:], len(m.Deliveries))
		return
	}
	var it Deliveries
	_ = it.Reset(c.p) // Err says it, too
	*m = Deliver{First: it.First}
	for d := it.Next(); d != nil; d = it.Next() {
		own := *d
		own.Headers = append([]batch.KV(nil), d.Headers...)
		m.Deliveries = append(m.Deliveries, own)
	}
	c.err = it.Err()
}

var testTopic = uuid.MustParse("01234567-89ab-cdef-0123-456789abcdef")

// sample is a frame of a kind: its type and its payload, or the head of it.
type sample struct {
	name    string
	typ     netproto.Type
	status  netproto.Status
	request uint64
	m       Payload
	batches []byte // of a self-checked frame
}

// samples has a frame of each type and form. No two fields of a message have the same value.
func samples(t testing.TB) []sample {
	stored := sealed(t)
	batch.Stamp(stored, 5, 1000, 3, 1_700_000_000_000_000_001, 0xfeedf00d)
	return []sample{
		{"auth", TypeAuth, 0, 1, &Auth{Token: "secret", Client: "reporter 2.1"}, nil},
		{"auth-ack", TypeAuthAck, 0, 1, &Outcome{}, nil},
		{"refusal", TypeAuthAck, netproto.StatusRejected, 1, &Outcome{Text: "unknown token"}, nil},
		{"metadata", TypeMetadata, 0, 2, &MetadataRequest{Topics: []string{"orders", "bills"}, Create: true}, nil},
		{"metadata-reply", TypeMetadataReply, 0, 2, &Metadata{
			Revision: 77,
			Nodes:    []Node{{"n1", "10.0.0.1:4250"}, {"n2", ""}},
			Topics: []Topic{
				{Name: "orders", ID: testTopic, Partitions: []Partition{{1, 12}, {0, 13}, {NoLeader, 14}}},
				{Name: "bills", Status: netproto.StatusRejected, Partitions: []Partition{}},
			},
		}, nil},
		{"open-producer", TypeOpenProducer, 0, 3, &OpenProducer{Topic: testTopic, Partition: 2, Name: "importer"}, nil},
		{"open-producer-for-a-tenure", TypeOpenProducer, 0, 3, &OpenProducer{
			Topic: testTopic, Partition: 2, Name: "importer", Tenure: 1_700_000_000_000<<20 | 77,
		}, nil},
		{"producer-with-a-tenure", TypeProducer, 0, 3, &Producer{
			ID: 0x1122334455667788, Epoch: 4, Sequence: 900, Tenure: 1_700_000_000_000<<20 | 77,
		}, nil},
		{"fenced", TypeProducer, netproto.StatusOldEpoch, 3, &Outcome{First: 1_700_000_000_000 << 20, Text: "later"}, nil},
		{"producer", TypeProducer, 0, 3, &Producer{ID: 0x1122334455667788, Epoch: 4, Sequence: 900}, nil},
		{"produce", TypeProduce, 0, 4, &Produce{Topic: testTopic, Partition: 2}, sealed(t)},
		{"produced", TypeProduced, 0, 4, &Produced{First: 0x0002000000000384, Duplicate: true}, nil},
		{"not-leader", TypeProduced, netproto.StatusNotLeader, 4, &Outcome{Text: "moved", Address: "10.0.0.2:4250"}, nil},
		{"read", TypeRead, 0, 5, &Read{
			Topic: testTopic, Partition: 2, From: FromTime, Value: 1_700_000_000_000_000_000, Credit: 1 << 20,
		}, nil},
		{"records", TypeRecords, 0, 5, &Records{Next: 0x00020000000003e9, Newest: 0x00020000000003eb}, stored},
		{"read-credit", TypeReadCredit, 0, 5, &ReadCredit{Bytes: 65536}, nil},
		{"read-end", TypeReadEnd, netproto.StatusGap, 5, &Outcome{First: 0x0002000000000400, Text: "too old"}, nil},
		{"go-away", TypeGoAway, netproto.StatusClosed, 0, &Outcome{Text: "the node stops", Address: "10.0.0.2:4250"}, nil},
		{"subscribe", TypeSubscribe, 0, 6, &Subscribe{
			Topic: testTopic, Channel: "billing", Tag: "eu", Create: true, From: FromTime, Value: 1_700_000_000_000_000_000,
			SampleRate: 25, Partition: 2, TimeoutMs: 60000, Messages: 256, Bytes: 1 << 20,
		}, nil},
		{"subscribed", TypeSubscribed, 0, 6, &Subscribed{TimeoutMs: 60000, MaxTimeoutMs: 900000}, nil},
		{"deliver", TypeDeliver, 0, 6, &Deliver{First: 77, Deliveries: []Delivery{
			{ID: 0x0002000000000384, Timestamp: 1_700_000_000_000_000_001, Attempts: 1, Body: []byte("hello")},
			{
				ID: 0x0003000000000385, Timestamp: 1_700_000_000_000_000_002, Attempts: 4, Body: []byte("world"),
				Headers: []batch.KV{{Key: []byte("k"), Value: []byte("v1")}, {Key: []byte("empty"), Value: []byte{}}},
			},
		}}, nil},
		{"credit", TypeCredit, 0, 6, &Credit{Messages: 512, Bytes: 65536}, nil},
		{"credit-with-a-stamp", TypeCredit, 0, 6, &Credit{Messages: 512, Stamp: 86_400_000_000_001}, nil},
		{"subscribe-with-a-stamp", TypeSubscribe, 0, 6, &Subscribe{
			Topic: testTopic, Channel: "billing", From: FromDefault, Partition: NoPartition, Messages: 256, Bytes: 1 << 20,
			Stamp: 86_400_000_000_000,
		}, nil},
		{"deliver-ordered", TypeDeliverOrdered, 0, 6, &DeliverOrdered{
			Stamp: 86_400_000_000_001, AgeMs: 250, WithinMs: 2000, First: 77, Deliveries: []Delivery{
				{ID: 0x0002000000000384, Timestamp: 1_700_000_000_000_000_001, Attempts: 1, Body: []byte("hello")},
			},
		}, nil},
		{"recall", TypeRecall, 0, 6, &Recall{Partition: 2, Number: 77}, nil},
		{"finish", TypeFinish, 0, 6, &Handles{Deliveries: []Handle{{77, 0x0002000000000384}, {78, 0x0003000000000385}}}, nil},
		{"finish-through", TypeFinishThrough, 0, 6, &FinishThrough{Number: 78, ID: 0x0003000000000385}, nil},
		{"requeue", TypeRequeue, 0, 6, &Requeue{
			Messages: []Delayed{{Handle{77, 0x0002000000000384}, 0}, {Handle{78, 0x0003000000000385}, 1500}},
		}, nil},
		{"touch", TypeTouch, 0, 6, &Handles{Deliveries: []Handle{{77, 0x0002000000000384}}}, nil},
		{"refused", TypeRefused, 0, 6, &Refused{Messages: []Refusal{
			{Handle{77, 0x0002000000000384}, uint16(TypeFinish), netproto.StatusRejected},
			{Handle{78, 0x0003000000000385}, uint16(TypeRequeue), netproto.StatusFull},
		}}, nil},
		{"sync", TypeSync, 0, 7, &Sync{Subscription: 6}, nil},
		{"synced", TypeSynced, 0, 7, &Outcome{}, nil},
		{"subscribe-end", TypeSubscribeEnd, netproto.StatusNotLeader, 6, &Outcome{
			Text: "moved", Address: "10.0.0.2:4250",
		}, nil},
	}
}

// sealed is a batch of two messages as a client seals it.
func sealed(t testing.TB) []byte {
	t.Helper()
	b := batch.Builder{ProducerID: 0x1122334455667788, ProducerEpoch: 4, BaseSequence: 900}
	for _, r := range []batch.Record{
		{Body: []byte("hello")},
		{Body: []byte("world"), Headers: []batch.KV{{Key: []byte("k"), Value: []byte("v")}}},
	} {
		if err := b.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	p, err := b.Seal(1_700_000_000_000_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// frame is the sample as a connection writes it.
func (s *sample) frame() []byte {
	head := Append(nil, s.m)
	p := append(head[:len(head):len(head)], s.batches...)
	h := netproto.Header{Type: s.typ, Status: s.status, Request: s.request, PayloadBytes: uint32(len(p))}
	if s.batches != nil {
		h.Flags, h.HeadBytes = netproto.FlagSelfChecked, uint16(len(head))
	}
	h.PayloadCRC = crc32.Checksum(p[:h.CheckedBytes()], crc32.MakeTable(crc32.Castagnoli))
	all := make([]byte, netproto.HeaderBytes, netproto.HeaderBytes+len(p))
	h.Marshal(all)
	return append(all, p...)
}

// fresh returns an empty message of the same type.
func fresh(m Payload) Payload { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Payload) }

// addedTo returns the last field of a message, which may be missing; nil: it has none like that.
func addedTo(m Payload) *uint64 {
	switch m := m.(type) {
	case *OpenProducer:
		return &m.Tenure
	case *Producer:
		return &m.Tenure
	case *Subscribe:
		return &m.Stamp
	case *Credit:
		return &m.Stamp
	}
	return nil
}

// What is written is read as it was, also into a message that was used before, and bytes behind it change nothing. No
// beginning of it is a message.
func TestRoundTrips(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			p := Append([]byte("before"), s.m)[len("before"):]
			m := fresh(s.m)
			later := "fields of a later version"
			added := addedTo(s.m)
			if added != nil && *added == 0 {
				later = string(make([]byte, 8)) + later
			}
			for _, tail := range []string{"", later} {
				if err := Decode(append(p[:len(p):len(p)], tail...), m); err != nil || !reflect.DeepEqual(m, s.m) {
					t.Errorf("with %q behind it: %v, read as %+v, want %+v", tail, err, m, s.m)
				}
			}
			for n := range p {
				if added != nil && *added != 0 && n == len(p)-8 {
					continue // as versions without the field write it
				}
				if err := Decode(p[:n], fresh(s.m)); !errors.Is(err, ErrInvalid) {
					t.Errorf("%d of %d bytes: %v", n, len(p), err)
				}
			}
		})
	}
}

// No two bytes that decode differently are of one message: the values that a field refuses.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     Payload
		at    int // the byte that is set
		value byte
	}{
		{"a flag of MetadataRequest", &MetadataRequest{}, 0, 2},
		{"a flag of Produced", &Produced{}, 8, 2},
		{"a high flag of Produced", &Produced{}, 15, 1},
		{"reserved bytes of Produce", &Produce{}, 20, 1},
		{"the last reserved byte of Produce", &Produce{}, 23, 1},
		{"a place to read from", &Read{}, 20, byte(FromNewest) + 1},
		{"reserved bytes of Read", &Read{}, 21, 1},
		{"the last reserved byte of Read", &Read{}, 23, 1},
		{"a place where a channel begins", &Subscribe{}, 21, byte(FromDefault) + 1},
		{"a flag of Subscribe", &Subscribe{}, 20, 2},
		{"a sample", &Subscribe{}, 30, 101},
		{"a leader that is no node", &Metadata{
			Nodes: []Node{{}}, Topics: []Topic{{Partitions: []Partition{{Leader: 0}}}},
		}, 8 + 4 + 4 + 4 + 2 + 2 + 16 + 4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Append(nil, c.m)
			if err := Decode(p, fresh(c.m)); err != nil {
				t.Fatal(err)
			}
			p[c.at] = c.value
			if err := Decode(p, fresh(c.m)); !errors.Is(err, ErrInvalid) {
				t.Errorf("byte %d is %d: %v", c.at, c.value, err)
			}
		})
	}
}

// A count alone allocates nothing: Metadata of a few bytes that claims all elements it may have is refused before.
func TestCountsThatLieAllocateNothing(t *testing.T) {
	lie := make([]byte, 8+4+4)
	lie[12], lie[13] = MaxTopicCount&0xff, MaxTopicCount>>8
	var m Metadata
	before := testing.AllocsPerRun(10, func() {
		if err := Decode(lie, &m); !errors.Is(err, ErrInvalid) || m.Topics != nil {
			t.Fatalf("%v, %d topics", err, len(m.Topics))
		}
	})
	if before > 10 { // the error
		t.Errorf("%v allocations", before)
	}
}

// What is written or read once per batch allocates nothing.
func TestAllocations(t *testing.T) {
	dst := make([]byte, 0, 64)
	for _, m := range []Payload{
		&Produce{}, &Produced{}, &Records{}, &ReadCredit{}, &Credit{}, &FinishThrough{},
		&Handles{Deliveries: []Handle{{1, 2}}},
	} {
		if n := testing.AllocsPerRun(100, func() {
			dst = Append(dst[:0], m)
			if Decode(dst, m) != nil {
				panic("not read")
			}
		}); n != 0 {
			t.Errorf("%T allocates %v times", m, n)
		}
	}
}

// A value that the writer's own limits forbid is a bug of the caller.
func TestTooLongIsABug(t *testing.T) {
	for _, m := range []Payload{
		&Auth{Token: strings.Repeat("x", MaxTokenBytes+1)},
		&Outcome{Text: strings.Repeat("x", MaxTextBytes+1)},
		&Outcome{Text: strings.Repeat("x", 1<<17)},
		&OpenProducer{Name: strings.Repeat("x", MaxNameBytes+1)},
		&MetadataRequest{Topics: make([]string, MaxTopicCount+1)},
		&Metadata{Nodes: make([]Node, MaxNodeCount+1)},
		&Handles{Deliveries: make([]Handle, MaxIDCount+1)},
		&Requeue{Messages: make([]Delayed, MaxIDCount+1)},
		&Refused{Messages: make([]Refusal, MaxIDCount+1)},
		&Subscribe{SampleRate: 101},
		&Deliver{Deliveries: make([]Delivery, MaxDeliveryCount+1)},
		&Metadata{Topics: []Topic{{Partitions: make([]Partition, MaxPartitionCount+1)}}},
	} {
		func() {
			defer func() {
				if said, _ := recover().(string); !strings.HasPrefix(said, "BUG: ") {
					t.Errorf("%T: %q", m, said)
				}
			}()
			Append(nil, m)
		}()
	}
}

// Messages are packed and walked without an allocation, and what DeliverySize says is what they take.
func TestDeliveriesAllocateNothing(t *testing.T) {
	ds := []Delivery{
		{ID: 1, Timestamp: 2, Attempts: 3, Body: []byte("hello")},
		{ID: 4, Headers: []batch.KV{{Key: []byte("k"), Value: []byte("v")}}},
	}
	want, p := deliverHeadBytes, []byte(nil)
	for i := range ds {
		want += DeliverySize(&ds[i])
	}
	var it Deliveries
	pack := func() {
		p = BeginDeliver(p[:0], 9)
		for i := range ds {
			p = AppendDelivery(p, &ds[i])
		}
		EndDeliver(p, len(ds))
		n := 0
		for _ = it.Reset(p); it.Next() != nil; n++ {
		}
		if n != len(ds) || it.First != 9 || it.Err() != nil {
			panic("not read")
		}
	}
	if n := testing.AllocsPerRun(100, pack); n != 0 || len(p) != want {
		t.Errorf("%v allocations; %d bytes, want %d", n, len(p), want)
	}
}
