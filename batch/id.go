package batch

import "errors"

// ID identifies a message among all partitions of a topic: the partition is in the upper 16 bits, the MsgID in the
// lower 48. It stays the same at every redelivery, restart and failover, so consumers may use it to recognise
// duplicates.
type ID uint64

const (
	// IDTextBytes is the length of an ID as text, which is what NSQ clients see.
	IDTextBytes = 16
	// MaxPartition is the largest partition number an ID can carry.
	MaxPartition = 1<<16 - 1

	partitionShift = 48
)

// ErrBadID says that bytes are not a message id, which is exactly 16 lower-case hex digits. No message is touched.
var ErrBadID = errors.New(
	"batch: a message id is 16 lower-case hex digits; nothing was changed, send the id as it was delivered")

// MakeID combines a partition and a message id. It panics on numbers that do not fit, which placement and the log
// refuse long before.
func MakeID(partition uint32, m MsgID) ID {
	if partition > MaxPartition || m > MaxMsgID {
		panic("BUG: partition or message id does not fit into an ID")
	}
	return ID(partition)<<partitionShift | ID(m)
}

// Partition returns the partition that holds the message.
func (id ID) Partition() uint32 { return uint32(id >> partitionShift) }

// MsgID returns the message's number in its partition.
func (id ID) MsgID() MsgID { return MsgID(id) & MaxMsgID }

// String returns the 16 lower-case hex digits that NSQ clients see.
func (id ID) String() string {
	return string(id.Append(make([]byte, 0, IDTextBytes)))
}

// Append appends the 16 digits to dst without allocating beyond dst's capacity.
func (id ID) Append(dst []byte) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[id>>shift&0xf])
	}
	return dst
}

// ParseID parses the 16 digits. It refuses upper case, so that an id has exactly one text.
func ParseID(p []byte) (ID, error) {
	if len(p) != IDTextBytes {
		return 0, ErrBadID
	}
	var id ID
	for _, b := range p {
		switch {
		case '0' <= b && b <= '9':
			id = id<<4 | ID(b-'0')
		case 'a' <= b && b <= 'f':
			id = id<<4 | ID(b-'a'+10)
		default:
			return 0, ErrBadID
		}
	}
	return id, nil
}
