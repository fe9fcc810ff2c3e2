package fold

import (
	"encoding/binary"
	"fmt"

	"penstock/segment"
)

// CarriedMessage is the copy of a message that still waits to be delivered. The segment in which the message was
// published may then be removed: readers find the copy by the offset of the control batch that carries it.
type CarriedMessage struct {
	ID        segment.MsgID
	DueMs     int64  // when its publisher wanted it delivered, unix ms; 0: it was published without a delay
	CreatedNs int64  // of its batch, unix ns, or 0 if that is before 1970; the record's time is relative to it
	Record    []byte // encoded as in that batch's uncompressed body, with its size in front (batch.AppendRecord)
}

// MaxCarriedCount is the most messages that one DeferredCarried entry carries. Further ones go into later entries.
const MaxCarriedCount = 4096

const minCarriedBytes = 4 // id, due, created, length

// appendCarried writes the count and then, for each message, its id as a difference from the previous one, its due
// time, its creation time, and its record with the record's size.
func appendCarried(dst []byte, ms []CarriedMessage) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ms)))
	last := segment.MsgID(0)
	for i := range ms {
		m := &ms[i]
		if i > 0 && m.ID <= last || m.DueMs < 0 || m.CreatedNs < 0 {
			panic("BUG: carried messages are not sorted by id, or out of range")
		}
		dst = binary.AppendUvarint(dst, uint64(m.ID-last))
		dst = binary.AppendUvarint(dst, uint64(m.DueMs))
		dst = binary.AppendUvarint(dst, uint64(m.CreatedNs))
		dst = append(binary.AppendUvarint(dst, uint64(len(m.Record))), m.Record...)
		last = m.ID
	}
	return dst
}

// carried decodes what appendCarried wrote. The records are borrowed from the body. If wanted is not nil, only that
// message is kept, so that a search does not build a list of the whole entry.
func (d *decoder) carried(dst []CarriedMessage, wanted *segment.MsgID) []CarriedMessage {
	last := segment.MsgID(0)
	for i, n := 0, d.count(minCarriedBytes); i < n && d.bad == ""; i++ {
		m := CarriedMessage{
			ID: last + d.msgID(), DueMs: int64(d.atMost(1<<63 - 1)), CreatedNs: int64(d.atMost(1<<63 - 1)),
			Record: d.bytes(d.count(1)),
		}
		if i > 0 && m.ID == last || m.ID > segment.MaxMsgID {
			d.fail("carried messages are not sorted by id")
			return dst
		}
		if wanted == nil || m.ID == *wanted {
			dst = append(dst, m)
		}
		last = m.ID
	}
	return dst
}

// CarriedRecord finds a message in the body of the control batch that carries it. The record is borrowed from the body.
// If the body does not hold the message, the fold named the wrong batch, and CarriedRecord returns ErrBadControl.
func CarriedRecord(body []byte, id segment.MsgID) (CarriedMessage, error) {
	var found CarriedMessage
	ok := false
	ct := Control{wanted: &id}
	err := decodeControls(&ct, body, func([]byte) string { return "c" }, func(ct *Control) error {
		if len(ct.Carried) > 0 {
			found, ok = ct.Carried[0], true
		}
		return nil
	})
	if err == nil && !ok {
		err = fmt.Errorf("%w (it does not carry message %d)", ErrBadControl, id)
	}
	return found, err
}
