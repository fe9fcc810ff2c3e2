package core

import (
	"encoding/binary"
	"fmt"

	"penstock/segment"
)

// CarriedMessage is the copy of a message that still waits. The segment in which it was published may go:
// whoever delivers it finds it by the offset of the control batch that holds the copy.
type CarriedMessage struct {
	ID        segment.MsgID
	DueMs     int64  // when it was due by its publishing, unix ms; 0: it was not deferred then
	CreatedNs int64  // of the batch in which it was published, unix ns: the record's time counts from there
	Record    []byte // as in that batch's plain body, its size in front (segment.AppendRecord)
}

// MaxCarriedCount is how many messages one DeferredCarried entry carries at most. The others wait for the next.
const MaxCarriedCount = 4096

const minCarriedBytes = 4 // id, due, created, length

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

// carried reads what appendCarried wrote; the records are borrowed from the body. With wanted != nil only that
// message is kept: a search decodes the entry without a list of everything in it.
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

// CarriedRecord finds a message in the body of a control batch that carries it. The record is borrowed
// from the body. A body that does not hold it is an error: the fold named the wrong place.
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
