package server

import (
	"encoding/binary"
	"fmt"
)

const sizeBytes = 4 // a length prefix: big-endian, signed

// minBatchMessageBytes is the least that one message takes in an MPUB body: its size and one byte.
const minBatchMessageBytes = sizeBytes + 1

// batchCheck validates an MPUB body, [count int32]([size int32][bytes])*, as its bytes arrive. It remembers how far it
// got, so that a body that arrives in many pieces is checked only once. The zero value is ready to start.
type batchCheck struct {
	at    int // offset of the next message's size; 0: the count has not arrived yet
	index int // number of that message
	count int
}

// check validates the part of a body of size bytes that has arrived. It returns nsqd's error, or "". When
// have is the whole body and there is no error, the body is valid: it has exactly count messages, each within the limits.
func (c *batchCheck) check(have []byte, size, maxMessageBytes, maxBodyBytes int) string {
	whole := len(have) == size
	if c.at == 0 {
		if len(have) < sizeBytes {
			if whole {
				return "E_BAD_BODY MPUB failed to read message count"
			}
			return ""
		}
		c.count = int(int32(binary.BigEndian.Uint32(have)))
		if c.count <= 0 || c.count > (maxBodyBytes-sizeBytes)/minBatchMessageBytes {
			return fmt.Sprintf("E_BAD_BODY MPUB invalid message count %d", c.count)
		}
		c.at = sizeBytes
	}
	for c.index < c.count {
		if len(have)-c.at < sizeBytes {
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
		case c.at+sizeBytes+n > size:
			return "E_BAD_MESSAGE MPUB failed to read message body"
		case c.at+sizeBytes+n > len(have):
			return ""
		}
		c.at += sizeBytes + n
		c.index++
	}
	if c.at != size {
		return fmt.Sprintf("E_BAD_BODY MPUB invalid body size %d", size)
	}
	return ""
}

// batchMessages appends the messages of a valid MPUB body to dst. They are slices of body.
func batchMessages(dst [][]byte, body []byte) [][]byte {
	for body = body[sizeBytes:]; len(body) > 0; {
		n := int(binary.BigEndian.Uint32(body))
		dst = append(dst, body[sizeBytes:sizeBytes+n:sizeBytes+n])
		body = body[sizeBytes+n:]
	}
	return dst
}
