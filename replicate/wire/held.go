package wire

import (
	"encoding/binary"

	"github.com/google/uuid"

	"penstock/segment"
)

const (
	stampBytes    = 8
	heldHeadBytes = 8 + 4
	heldBytes     = 8 + 8
	fenceBytes    = 16 + 4 + 8

	// HeldBytes is the number of bytes that AppendHeld appends.
	HeldBytes = heldBytes
)

// AppendStamp appends the payload of a Stamp: a time of the sender's own clock, in ns, which only the sender can
// interpret.
func AppendStamp(dst []byte, ns uint64) []byte { return binary.LittleEndian.AppendUint64(dst, ns) }

// DecodeStamp reads the payload of a Stamp.
func DecodeStamp(p []byte) (uint64, error) {
	if len(p) != stampBytes {
		return 0, invalid("a stamp of %d bytes", len(p))
	}
	return binary.LittleEndian.Uint64(p), nil
}

// HeldHead begins the payload of a DeliverHeld. Its messages may be handed to the client until HoldMs after Stamp, on
// the clock of the node that sent the stamp.
type HeldHead struct {
	Stamp  uint64 // the newest one that the leader has received
	HoldMs uint32
}

// AppendHeldHead appends the head of a DeliverHeld.
func AppendHeldHead(dst []byte, h *HeldHead) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(dst, h.Stamp), h.HoldMs)
}

// DecodeHeldHead reads the head of a DeliverHeld. rest is the messages, each a Held and a Delivered.
func DecodeHeldHead(p []byte) (h HeldHead, rest []byte, err error) {
	if len(p) < heldHeadBytes {
		return h, nil, invalid("a DeliverHeld of %d bytes", len(p))
	}
	return HeldHead{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint32(p[8:])}, p[heldHeadBytes:], nil
}

// Held precedes each message of a DeliverHeld.
type Held struct {
	Epoch  segment.Epoch // of the leader, in the message's partition
	Serial uint64        // rises within the subscription; not 0
}

// AppendHeld appends the encoding of h; the message must follow.
func AppendHeld(dst []byte, h *Held) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, uint64(h.Epoch)), h.Serial)
}

// NextHeld reads the Held at the start of p, and returns the rest, which begins with its message.
func NextHeld(p []byte) (h Held, rest []byte, err error) {
	if len(p) < heldBytes {
		return h, nil, invalid("%d bytes behind the messages of a DeliverHeld", len(p))
	}
	h = Held{segment.Epoch(binary.LittleEndian.Uint64(p)), binary.LittleEndian.Uint64(p[8:])}
	if h.Serial == 0 {
		return h, nil, invalid("a held message without a serial")
	}
	return h, p[heldBytes:], nil
}

// Fence is the payload of a Fence and of the Fenced that answers it.
type Fence struct {
	Topic     uuid.UUID
	Partition uint32
	Epoch     segment.Epoch // of the new leader: what leaders of older epochs delivered is void
}

// AppendFence appends the encoding of f.
func AppendFence(dst []byte, f *Fence) []byte {
	dst = binary.LittleEndian.AppendUint32(append(dst, f.Topic[:]...), f.Partition)
	return binary.LittleEndian.AppendUint64(dst, uint64(f.Epoch))
}

// DecodeFence reads a Fence. The error is ErrInvalid.
func DecodeFence(p []byte) (f Fence, err error) {
	if len(p) != fenceBytes {
		return f, invalid("a fence of %d bytes", len(p))
	}
	f = Fence{uuid.UUID(p[:16]), binary.LittleEndian.Uint32(p[16:]), segment.Epoch(binary.LittleEndian.Uint64(p[20:]))}
	if f.Topic == uuid.Nil || f.Epoch == 0 {
		return f, invalid("a fence of topic %v, epoch %d", f.Topic, f.Epoch)
	}
	return f, nil
}
