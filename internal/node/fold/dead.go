package fold

import (
	"encoding/binary"

	"penstock/segment"
)

// DeadMessage is a dead letter: a message that was delivered as often as its channel allows.
type DeadMessage struct {
	ID       segment.MsgID
	Attempts uint16
}

func (d DeadMessage) id() segment.MsgID { return d.ID }

// appendDead writes the count and then, for each dead letter, its id as a difference from the previous one, and its
// attempts.
func appendDead(dst []byte, dead []DeadMessage) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(dead)))
	last := segment.MsgID(0)
	for i, d := range dead {
		if i > 0 && d.ID <= last || d.Attempts > MaxAttempts {
			panic("BUG: dead letters are not sorted by id, or out of range")
		}
		dst = binary.AppendUvarint(dst, uint64(d.ID-last))
		dst = binary.AppendUvarint(dst, uint64(d.Attempts))
		last = d.ID
	}
	return dst
}

func (d *decoder) dead(dst []DeadMessage) []DeadMessage {
	last := segment.MsgID(0)
	for i, n := 0, d.count(2); i < n && d.bad == ""; i++ {
		m := DeadMessage{ID: last + d.msgID(), Attempts: uint16(d.atMost(MaxAttempts))}
		if i > 0 && m.ID == last || m.ID > segment.MaxMsgID {
			d.fail("dead letters are not sorted by id")
			return dst
		}
		dst = append(dst, m)
		last = m.ID
	}
	return dst
}
