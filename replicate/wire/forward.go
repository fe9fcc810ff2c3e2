package wire

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/google/uuid"

	"penstock/segment"
)

// Puts of one node's clients, forwarded to the leader of their partition (types 32 and 33 of netproto). The request in
// the frame's header is the put's number, chosen by the forwarding node. FORMAT.md has the bytes.

const (
	// PutHeadBytes is the length of the head of a ForwardPut.
	PutHeadBytes = 16 + 4 + 4 + 4 + 1 + 3 + 4
	// PutAckBytes is what AppendPutAck appends.
	PutAckBytes = 8 + 1

	sizeBytes = 4
)

// Offsets in the head of a ForwardPut.
const (
	offPutTopic     = 0
	offPutPartition = 16
	offPutDelay     = 20
	offPutRun       = 24
	offPutKind      = 28
	offPutWait      = 29
	offPutCount     = 32
)

// PutKind says what a ForwardPut carries. A number never changes its meaning.
type PutKind uint8

// The payload behind the head, by kind.
const (
	PutMessages PutKind = 0 // bodies
	PutSealed   PutKind = 1 // one batch, as its producer sealed it
	PutHeadered PutKind = 2 // bodies, each behind its headers
	PutNumbered PutKind = 3 // a PutNumbers whose Tenure is below 2^32, then as PutHeadered
	PutTaken    PutKind = 4 // any other PutNumbers, then as PutHeadered
	PutAsk      PutKind = 5 // nothing: asks for the answer to an earlier put with the same request; see FORMAT.md
)

// PutHead is the head of the payload of a ForwardPut.
type PutHead struct {
	Topic     uuid.UUID
	Partition uint32
	DelayMs   uint32
	Run       uint32 // if the leader refuses a put as not stored, it refuses all later puts of the run
	Kind      PutKind
	Count     uint32 // messages; 1 for a sealed batch
	// WaitMs is how long the put may still wait to be stored, at most MaxPutWaitMs. 0 means as long as the receiver's own
	// puts.
	WaitMs uint32
}

// MaxPutWaitMs is the largest PutHead.WaitMs, which has three bytes: four hours and a half.
const MaxPutWaitMs = 1<<24 - 1

// AppendPutHead appends the encoding of h, whose WaitMs is at most MaxPutWaitMs.
func AppendPutHead(dst []byte, h *PutHead) []byte {
	var p [PutHeadBytes]byte
	le := binary.LittleEndian
	copy(p[offPutTopic:], h.Topic[:])
	le.PutUint32(p[offPutPartition:], h.Partition)
	le.PutUint32(p[offPutDelay:], h.DelayMs)
	le.PutUint32(p[offPutRun:], h.Run)
	p[offPutKind] = byte(h.Kind)
	p[offPutWait], p[offPutWait+1], p[offPutWait+2] = byte(h.WaitMs), byte(h.WaitMs>>8), byte(h.WaitMs>>16)
	le.PutUint32(p[offPutCount:], h.Count)
	return append(dst, p[:]...)
}

// DecodePutHead reads a PutHead. Its Kind may be one that this version does not know; rest is the payload behind the
// head.
func DecodePutHead(p []byte) (h PutHead, rest []byte, err error) {
	if len(p) < PutHeadBytes {
		return h, nil, invalid("a ForwardPut of %d bytes", len(p))
	}
	le := binary.LittleEndian
	h = PutHead{
		Topic: uuid.UUID(p[offPutTopic:offPutPartition]), Partition: le.Uint32(p[offPutPartition:]),
		DelayMs: le.Uint32(p[offPutDelay:]), Run: le.Uint32(p[offPutRun:]),
		Kind: PutKind(p[offPutKind]), Count: le.Uint32(p[offPutCount:]),
		WaitMs: le.Uint32(p[offPutKind:]) >> 8,
	}
	return h, p[PutHeadBytes:], nil
}

// PutNumbers says which messages of a producer a PutNumbered has.
type PutNumbers struct {
	Name     []byte // of the producer
	Tenure   uint64 // below 2^32: an epoch, which takes its place below feature level 5
	Sequence uint32 // of the first message
}

// Kind returns the kind of the put.
func (n *PutNumbers) Kind() PutKind {
	if n.Tenure <= math.MaxUint32 {
		return PutNumbered
	}
	return PutTaken
}

// AppendPutNumbers appends the encoding of n, which comes before the messages of a put of n.Kind.
func AppendPutNumbers(dst []byte, n *PutNumbers) []byte {
	if n.Kind() == PutNumbered {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n.Tenure))
	} else {
		dst = binary.LittleEndian.AppendUint64(dst, n.Tenure)
	}
	dst = binary.LittleEndian.AppendUint32(dst, n.Sequence)
	return appendSized(dst, n.Name)
}

// NextPutNumbers reads the PutNumbers at the start of p, of a put of this kind, and returns the rest of p. The name is
// borrowed from p.
func NextPutNumbers(p []byte, kind PutKind) (n PutNumbers, rest []byte, err error) {
	tenureBytes := 8
	if kind == PutNumbered {
		tenureBytes = 4
	}
	if len(p) < tenureBytes+4 {
		return n, nil, invalid("the numbers of a producer in %d bytes", len(p))
	}
	if n.Tenure = uint64(binary.LittleEndian.Uint32(p)); kind != PutNumbered {
		n.Tenure = binary.LittleEndian.Uint64(p)
	}
	n.Sequence = binary.LittleEndian.Uint32(p[tenureBytes:])
	n.Name, rest, err = cutSized(p[tenureBytes+4:])
	return n, rest, err
}

// AppendPutHeaders appends the headers of one message of a PutHeadered or PutNumbered; the message's body must follow.
func AppendPutHeaders(dst []byte, headers []segment.KV) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(headers)))
	for i := range headers {
		dst = appendSized(appendSized(dst, headers[i].Key), headers[i].Value)
	}
	return dst
}

// NextPutHeaders appends the headers at the start of p to dst, and returns the rest of p. The headers are borrowed from
// p.
func NextPutHeaders(dst []segment.KV, p []byte) (headers []segment.KV, rest []byte, err error) {
	if len(p) < sizeBytes {
		return dst, nil, invalid("a count of headers in %d bytes", len(p))
	}
	count := binary.LittleEndian.Uint32(p)
	if count > segment.MaxHeaderCount {
		return dst, nil, invalid("a message with %d headers", count)
	}
	p = p[sizeBytes:]
	for range count {
		var kv segment.KV
		if kv.Key, p, err = cutSized(p); err != nil {
			return dst, nil, err
		}
		if kv.Value, p, err = cutSized(p); err != nil {
			return dst, nil, err
		}
		dst = append(dst, kv)
	}
	return dst, p, nil
}

// AppendPutBody appends the body of a message.
func AppendPutBody(dst, body []byte) []byte { return appendSized(dst, body) }

// NextPutBody returns the body at the start of p, borrowed from p, and the rest.
func NextPutBody(p []byte) (body, rest []byte, err error) { return cutSized(p) }

func appendSized(dst, b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(b))), b...)
}

// cutSized reads a length and that many bytes.
func cutSized(p []byte) (b, rest []byte, err error) {
	if len(p) < sizeBytes || uint64(binary.LittleEndian.Uint32(p)) > uint64(len(p)-sizeBytes) {
		return nil, nil, invalid("a length and what it counts in %d bytes", len(p))
	}
	end := sizeBytes + int(binary.LittleEndian.Uint32(p))
	return p[sizeBytes:end:end], p[end:], nil
}

// PutAck is the payload of a ForwardAck. The frame's status says whether the put was stored.
type PutAck struct {
	First  uint64 // id of the first message; of a put that was refused with ReasonSequence see AckSequence
	Reason uint8  // number of a Reason in an AnswerPut; 0 with StatusOK
	Text   string // of the error, if it says more than Reason; older versions neither write nor read it
}

// MaxAckTextBytes bounds PutAck.Text. A longer text is cut.
const MaxAckTextBytes = 1024

// AppendPutAck appends the encoding of a.
func AppendPutAck(dst []byte, a *PutAck) []byte {
	dst = append(binary.LittleEndian.AppendUint64(dst, a.First), a.Reason)
	if a.Text == "" {
		return dst
	}
	text := strings.ToValidUTF8(a.Text[:min(len(a.Text), MaxAckTextBytes)], "")
	return append(binary.LittleEndian.AppendUint16(dst, uint16(len(text))), text...)
}

// DecodePutAck reads a PutAck. It ignores bytes behind it, which a later version may add, and a text that is cut off.
func DecodePutAck(p []byte) (a PutAck, err error) {
	if len(p) < PutAckBytes {
		return a, invalid("a ForwardAck of %d bytes", len(p))
	}
	a.First, a.Reason = binary.LittleEndian.Uint64(p), p[PutAckBytes-1]
	if p = p[PutAckBytes:]; len(p) >= 2 {
		if n := int(binary.LittleEndian.Uint16(p)); n <= min(len(p)-2, MaxAckTextBytes) {
			a.Text = strings.ToValidUTF8(string(p[2:2+n]), "")
		}
	}
	return a, nil
}

// Bits of PutAck.First with ReasonSequence. Older versions leave it 0.
const (
	ackSequence = 1 << 63
	ackOther    = 1 << 62
)

// AckSequence returns PutAck.First with ReasonSequence: the number that the partition expects of the producer's next
// message, and whether the batch has the numbers of a stored one and another content.
func AckSequence(want uint32, other bool) uint64 {
	if other {
		return ackSequence | ackOther | uint64(want)
	}
	return ackSequence | uint64(want)
}

// SequenceOfAck decodes what AckSequence encoded. ok is false if the leader is an older version, which says nothing.
func SequenceOfAck(first uint64) (want uint32, other, ok bool) {
	return uint32(first), first&ackOther != 0, first&ackSequence != 0
}
