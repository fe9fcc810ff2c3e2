package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/segment"
)

// Subscriptions of one node's clients at a leader on another node (types 36 to 46 of netproto). The request in the
// frame's header is the subscription's number. These payloads are short or copied anyway, so the frame's checksum
// covers them whole. FORMAT.md has the bytes.

const (
	// MaxLabelBytes bounds the label of a subscription, which describes its client.
	MaxLabelBytes = 4096
	// MaxChannelNameBytes is NSQ's limit.
	MaxChannelNameBytes = 64

	// MaxTagBytes bounds a consumer's tag.
	MaxTagBytes = 255

	maxOnly        = batch.MaxPartition + 1
	subscribeBytes = 16 + 4 + 4 + 1 + 1 + 2 + 1 + 3
	deliveredBytes = 8 + 8 + 2 + 2 + 4
	headerBytes    = 2 + 4
	consumedBytes  = 4 + 4
	failureBytes   = 8 + 1 + 1
)

// Subscribe asks a leader for the messages of a channel. All byte slices are borrowed after a decode.
type Subscribe struct {
	Topic        uuid.UUID
	Channel      []byte // 1 to MaxChannelNameBytes
	MsgTimeoutMs uint32
	WindowBytes  uint32 // bytes of messages that may be on their way to the client; not 0
	SampleRate   uint8  // percent, 0..99
	Only         uint32 // number of the only partition that is wanted, plus 1; 0: all. From feature level 3 on
	Tag          []byte // at most MaxTagBytes
	Label        []byte // at most MaxLabelBytes: who the client is, as JSON
}

// AppendSubscribe appends the payload of a Subscribe.
func AppendSubscribe(dst []byte, s *Subscribe) []byte {
	if len(s.Channel) == 0 || len(s.Channel) > MaxChannelNameBytes || len(s.Label) > MaxLabelBytes ||
		len(s.Tag) > MaxTagBytes || s.Only > maxOnly {
		panic(fmt.Sprintf("BUG: wire: a subscription with a channel of %d bytes, a tag of %d and a label of %d, only %d",
			len(s.Channel), len(s.Tag), len(s.Label), s.Only))
	}
	le := binary.LittleEndian
	dst = append(dst, s.Topic[:]...)
	dst = le.AppendUint32(dst, s.MsgTimeoutMs)
	dst = le.AppendUint32(dst, s.WindowBytes)
	dst = append(dst, s.SampleRate, byte(len(s.Channel)))
	dst = le.AppendUint16(dst, uint16(len(s.Label)))
	dst = append(dst, byte(len(s.Tag)), byte(s.Only), byte(s.Only>>8), byte(s.Only>>16))
	dst = append(append(dst, s.Channel...), s.Tag...)
	return append(dst, s.Label...)
}

// DecodeSubscribe reads the payload of a Subscribe. The error is ErrInvalid.
func DecodeSubscribe(p []byte) (s Subscribe, err error) {
	if len(p) < subscribeBytes {
		return s, invalid("a subscription of %d bytes", len(p))
	}
	le := binary.LittleEndian
	s = Subscribe{
		Topic: uuid.UUID(p[:16]), MsgTimeoutMs: le.Uint32(p[16:]), WindowBytes: le.Uint32(p[20:]), SampleRate: p[24],
	}
	channel, label, tag := int(p[25]), int(le.Uint16(p[26:])), int(p[28])
	s.Only = uint32(p[29]) | uint32(p[30])<<8 | uint32(p[31])<<16
	p = p[subscribeBytes:]
	switch {
	case channel == 0 || channel > MaxChannelNameBytes || label > MaxLabelBytes || len(p) != channel+tag+label:
		return s, invalid("a subscription with a channel of %d bytes, a tag of %d and a label of %d in %d",
			channel, tag, label, len(p))
	case s.Topic == uuid.Nil || s.WindowBytes == 0 || s.SampleRate > 99 || s.Only > maxOnly:
		return s, invalid("a subscription to topic %v, window %d, sample rate %d, only %d",
			s.Topic, s.WindowBytes, s.SampleRate, s.Only)
	}
	s.Channel, s.Tag, s.Label = p[:channel:channel], p[channel:channel+tag:channel+tag], p[channel+tag:]
	return s, nil
}

// ConsumeKind says what a client did. A number never changes its meaning.
type ConsumeKind uint8

// The kinds, with the fields of Consume that each uses.
const (
	ConsumeReady   ConsumeKind = 1 // Seq, Count: from now on Count messages may be in flight; answered by a Consumed
	ConsumeFinish  ConsumeKind = 2 // ID
	ConsumeRequeue ConsumeKind = 3 // ID, DelayMs
	ConsumeTouch   ConsumeKind = 4 // ID
	ConsumeStop    ConsumeKind = 5 // deliver nothing more
	ConsumeCredit  ConsumeKind = 6 // Count: the client's node has taken this many bytes of Deliver payloads
	ConsumeSeen    ConsumeKind = 7 // Serial: of the newest held message that had come before the entries that follow
	ConsumeReturn  ConsumeKind = 8 // ID, Serial: the message was not handed to the client, and will not be
)

var consumeBytes = [...]int{
	ConsumeReady: 8, ConsumeFinish: 8, ConsumeRequeue: 16, ConsumeTouch: 8, ConsumeStop: 0, ConsumeCredit: 4,
	ConsumeSeen: 8, ConsumeReturn: 16,
}

// Consume is one entry of a Consume frame.
type Consume struct {
	Kind    ConsumeKind
	Seq     uint32
	Count   uint32
	ID      uint64
	DelayMs uint64
	Serial  uint64
}

// AppendConsume appends the encoding of c.
func AppendConsume(dst []byte, c *Consume) []byte {
	le := binary.LittleEndian
	dst = append(dst, byte(c.Kind))
	switch c.Kind {
	case ConsumeReady:
		dst = le.AppendUint32(le.AppendUint32(dst, c.Seq), c.Count)
	case ConsumeFinish, ConsumeTouch:
		dst = le.AppendUint64(dst, c.ID)
	case ConsumeRequeue:
		dst = le.AppendUint64(le.AppendUint64(dst, c.ID), c.DelayMs)
	case ConsumeStop:
	case ConsumeCredit:
		dst = le.AppendUint32(dst, c.Count)
	case ConsumeSeen:
		dst = le.AppendUint64(dst, c.Serial)
	case ConsumeReturn:
		dst = le.AppendUint64(le.AppendUint64(dst, c.ID), c.Serial)
	default:
		panic(fmt.Sprintf("BUG: wire: a Consume of kind %d", c.Kind))
	}
	return dst
}

// NextConsume reads the first entry of p, which must not be empty, and returns the rest.
func NextConsume(p []byte) (c Consume, rest []byte, err error) {
	c.Kind = ConsumeKind(p[0])
	if c.Kind == 0 || int(c.Kind) >= len(consumeBytes) || len(p)-1 < consumeBytes[c.Kind] {
		return c, nil, invalid("a Consume of kind %d in %d bytes", p[0], len(p))
	}
	le := binary.LittleEndian
	rest = p[1+consumeBytes[c.Kind]:]
	p = p[1:]
	switch c.Kind {
	case ConsumeReady:
		c.Seq, c.Count = le.Uint32(p), le.Uint32(p[4:])
	case ConsumeFinish, ConsumeTouch:
		c.ID = le.Uint64(p)
	case ConsumeRequeue:
		c.ID, c.DelayMs = le.Uint64(p), le.Uint64(p[8:])
	case ConsumeCredit:
		c.Count = le.Uint32(p)
	case ConsumeSeen:
		c.Serial = le.Uint64(p)
	case ConsumeReturn:
		c.ID, c.Serial = le.Uint64(p), le.Uint64(p[8:])
	}
	return c, rest, nil
}

// Consumed begins the payload of a Consumed; failures may follow.
type Consumed struct {
	Seq      uint32 // of the newest ConsumeReady that took effect; 0: the frame answers none
	InFlight uint32 // messages in flight after that ConsumeReady
}

// AppendConsumed appends the head of a Consumed.
func AppendConsumed(dst []byte, c *Consumed) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(dst, c.Seq), c.InFlight)
}

// DecodeConsumed reads the head of a Consumed. failures is for NextFailure.
func DecodeConsumed(p []byte) (c Consumed, failures []byte, err error) {
	if len(p) < consumedBytes || (len(p)-consumedBytes)%failureBytes != 0 {
		return c, nil, invalid("a Consumed of %d bytes", len(p))
	}
	le := binary.LittleEndian
	return Consumed{Seq: le.Uint32(p), InFlight: le.Uint32(p[4:])}, p[consumedBytes:], nil
}

// Failure says that the leader refused a client's command on a message.
type Failure struct {
	ID     uint64
	Kind   ConsumeKind // ConsumeFinish, ConsumeRequeue or ConsumeTouch
	Reason uint8       // number of a Reason in an AnswerSubscription
}

// AppendFailure appends the encoding of f.
func AppendFailure(dst []byte, f *Failure) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, f.ID), byte(f.Kind), f.Reason)
}

// NextFailure reads the first failure of p, which must not be empty and must come from DecodeConsumed.
func NextFailure(p []byte) (f Failure, rest []byte) {
	return Failure{binary.LittleEndian.Uint64(p), ConsumeKind(p[8]), p[9]}, p[failureBytes:]
}

// Delivered is one message of a Deliver.
type Delivered struct {
	ID        uint64
	Timestamp int64
	Attempts  uint16
	Headers   []segment.KV // at most segment.MaxHeaderCount; Headers and Body are borrowed after a decode
	Body      []byte
}

// DeliveredBytes returns how many bytes AppendDelivered appends for d.
func DeliveredBytes(d *Delivered) int {
	n := deliveredBytes + len(d.Body)
	for i := range d.Headers {
		n += headerBytes + len(d.Headers[i].Key) + len(d.Headers[i].Value)
	}
	return n
}

// AppendDelivered appends the encoding of d.
func AppendDelivered(dst []byte, d *Delivered) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, d.ID)
	dst = le.AppendUint64(dst, uint64(d.Timestamp))
	dst = le.AppendUint16(dst, d.Attempts)
	dst = le.AppendUint16(dst, uint16(len(d.Headers)))
	dst = le.AppendUint32(dst, uint32(len(d.Body)))
	for i := range d.Headers {
		h := &d.Headers[i]
		dst = le.AppendUint16(dst, uint16(len(h.Key)))
		dst = le.AppendUint32(dst, uint32(len(h.Value)))
		dst = append(append(dst, h.Key...), h.Value...)
	}
	return append(dst, d.Body...)
}

// NextDelivered reads the first message of p, which must not be empty, into d, and returns the rest. It reuses
// d.Headers.
func NextDelivered(p []byte, d *Delivered) (rest []byte, err error) {
	if len(p) < deliveredBytes {
		return nil, invalid("%d bytes behind the messages of a Deliver", len(p))
	}
	le := binary.LittleEndian
	d.ID, d.Timestamp, d.Attempts = le.Uint64(p), int64(le.Uint64(p[8:])), le.Uint16(p[16:])
	count, body := int(le.Uint16(p[18:])), uint64(le.Uint32(p[20:]))
	d.Headers, d.Body = d.Headers[:0], nil
	p = p[deliveredBytes:]
	if count > segment.MaxHeaderCount {
		return nil, invalid("a message with %d headers", count)
	}
	for range count {
		if len(p) < headerBytes {
			return nil, invalid("a header in %d bytes", len(p))
		}
		key, value := uint64(le.Uint16(p)), uint64(le.Uint32(p[2:]))
		if p = p[headerBytes:]; key+value > uint64(len(p)) {
			return nil, invalid("a header of %d and %d bytes in %d", key, value, len(p))
		}
		d.Headers = append(d.Headers, segment.KV{Key: p[:key:key], Value: p[key : key+value : key+value]})
		p = p[key+value:]
	}
	if body > uint64(len(p)) {
		return nil, invalid("a message of %d bytes in %d", body, len(p))
	}
	d.Body = p[:body:body]
	return p[body:], nil
}
