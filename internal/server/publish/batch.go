package publish

import (
	"encoding/binary"
	"fmt"
)

const SizeBytes = 4 // a length prefix: big-endian, signed

// minBatchMessageBytes is the least that one message takes in an MPUB body: its size and one byte.
const minBatchMessageBytes = SizeBytes + 1

// BatchCheck validates an MPUB body, [count int32]([size int32][bytes])*, as its bytes arrive. It remembers how far it
// got, so that a body that arrives in many pieces is checked only once. The zero value is ready to start.
type BatchCheck struct {
	at    int // offset of the next message's size; 0: the count has not arrived yet
	index int // number of that message
	count int
}

// Check validates the part of a body of size bytes that has arrived. It returns nsqd's error, or "". When have is the
// whole body and there is no error, the body is valid: it has exactly count messages, each within the limits.
func (c *BatchCheck) Check(have []byte, size, maxMessageBytes, maxBodyBytes int) string {
	whole := len(have) == size
	if c.at == 0 {
		if len(have) < SizeBytes {
			if whole {
				return "E_BAD_BODY MPUB failed to read message count"
			}
			return ""
		}
		c.count = int(int32(binary.BigEndian.Uint32(have)))
		if c.count <= 0 || c.count > (maxBodyBytes-SizeBytes)/minBatchMessageBytes {
			return fmt.Sprintf("E_BAD_BODY MPUB invalid message count %d", c.count)
		}
		c.at = SizeBytes
	}
	for c.index < c.count {
		if len(have)-c.at < SizeBytes {
			if whole {
				return fmt.Sprintf("E_BAD_MESSAGE MPUB failed to read message(%d) body size", c.index)
			}
			return ""
		}
		n := int(int32(binary.BigEndian.Uint32(have[c.at:])))
		switch {
		case n <= 0:
			return fmt.Sprintf("E_BAD_MESSAGE MPUB invalid message(%d) body size %d", c.index, n)
		case n > maxMessageBytes:
			return fmt.Sprintf("E_BAD_MESSAGE MPUB message too big %d > %d", n, maxMessageBytes)
		case c.at+SizeBytes+n > size:
			return "E_BAD_MESSAGE MPUB failed to read message body"
		case c.at+SizeBytes+n > len(have):
			return ""
		}
		c.at += SizeBytes + n
		c.index++
	}
	if c.at != size {
		return fmt.Sprintf("E_BAD_BODY MPUB invalid body size %d", size)
	}
	return ""
}

// Messages appends the messages of a valid MPUB body to dst. They are slices of body.
func Messages(dst [][]byte, body []byte) [][]byte {
	for body = body[SizeBytes:]; len(body) > 0; {
		n := int(binary.BigEndian.Uint32(body))
		dst = append(dst, body[SizeBytes:SizeBytes+n:SizeBytes+n])
		body = body[SizeBytes+n:]
	}
	return dst
}
