package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// ErrInvalid says that bytes are not the payload of the type. The receiver ends the connection.
var ErrInvalid = errors.New("wire: not a valid payload")

// coder writes or reads the fields of one message, in their order. So each message says its layout once, for both
// directions. After an error it does nothing more.
type coder struct {
	p       []byte // written so far, or still to be read
	writing bool
	err     error
}

// Payload is a message of this package.
type Payload interface{ code(c *coder) }

var coders = sync.Pool{New: func() any { return new(coder) }} // so that a message costs no allocation

// Append appends a message to dst. It panics on a value that the limits forbid: callers check values that come from
// outside.
func Append(dst []byte, m Payload) []byte {
	p, err := run(coder{p: dst, writing: true}, m)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return p
}

// Decode reads a message from p, and ignores bytes behind it. It copies strings, and borrows everything else. Lists of
// Handles and Requeue use their old memory again.
func Decode(p []byte, m Payload) error {
	_, err := run(coder{p: p}, m)
	return err
}

func run(begin coder, m Payload) ([]byte, error) {
	c := coders.Get().(*coder)
	*c = begin
	m.code(c)
	p, err := c.p, c.err
	*c = coder{}
	coders.Put(c)
	return p, err
}

func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
}

// next returns the next n bytes of what is read, or nil.
func (c *coder) next(n int) []byte {
	if c.err == nil && len(c.p) < n {
		c.fail("%d bytes are missing", n-len(c.p))
	}
	if c.err != nil {
		return nil
	}
	p := c.p[:n:n]
	c.p = c.p[n:]
	return p
}

func (c *coder) u8(v *uint8) {
	if c.writing {
		c.p = append(c.p, *v)
	} else if p := c.next(1); p != nil {
		*v = p[0]
	}
}

func (c *coder) u16(v *uint16) {
	if c.writing {
		c.p = binary.LittleEndian.AppendUint16(c.p, *v)
	} else if p := c.next(2); p != nil {
		*v = binary.LittleEndian.Uint16(p)
	}
}

func (c *coder) u32(v *uint32) {
	if c.writing {
		c.p = binary.LittleEndian.AppendUint32(c.p, *v)
	} else if p := c.next(4); p != nil {
		*v = binary.LittleEndian.Uint32(p)
	}
}

func (c *coder) u64(v *uint64) {
	if c.writing {
		c.p = binary.LittleEndian.AppendUint64(c.p, *v)
	} else if p := c.next(8); p != nil {
		*v = binary.LittleEndian.Uint64(p)
	}
}

// last codes an integer that a later version added at the end of a message. A writer leaves out 0, and a reader takes 0
// if nothing is left to read. When further fields follow, the field is always there, and u64 codes it.
func (c *coder) last(v *uint64) {
	if c.writing && *v == 0 || !c.writing && len(c.p) == 0 {
		return
	}
	c.u64(v)
}

func (c *coder) i64(v *int64) {
	u := uint64(*v)
	c.u64(&u)
	*v = int64(u)
}

func (c *coder) uuid(v *uuid.UUID) {
	if c.writing {
		c.p = append(c.p, v[:]...)
	} else if p := c.next(len(v)); p != nil {
		copy(v[:], p)
	}
}

// zero is a reserved field of n bytes, which must be zero.
func (c *coder) zero(n int) {
	if c.writing {
		c.p = append(c.p, make([]byte, n)...)
		return
	}
	for _, b := range c.next(n) {
		if b != 0 {
			c.fail("reserved bytes are not zero")
		}
	}
}

// text is a string of at most most bytes, behind its length in two bytes.
func (c *coder) text(v *string, most int) {
	n := uint16(min(len(*v), 1<<16-1))
	if c.u16(&n); int(n) > most || c.writing && len(*v) > most {
		c.fail("a text of %d bytes, at most %d are allowed", max(int(n), len(*v)), most)
		return
	}
	if c.writing {
		c.p = append(c.p, *v...)
	} else if p := c.next(int(n)); p != nil {
		*v = string(p)
	}
}

// list is a list of at most most elements, behind their number in four bytes; each codes one element, which has at
// least least bytes. What is read is not longer than its bytes allow, so a count alone allocates nothing.
func list[T any](c *coder, v *[]T, most, least int, each func(*coder, *T)) {
	n := uint32(len(*v))
	if c.u32(&n); n > uint32(most) {
		c.fail("a list of %d elements, at most %d are allowed", n, most)
		return
	}
	if !c.writing {
		if c.err == nil && int(n)*least > len(c.p) {
			c.fail("%d elements in %d bytes", n, len(c.p))
		}
		if c.err != nil {
			return
		}
		*v = make([]T, n)
	}
	for i := range *v {
		each(c, &(*v)[i])
	}
}

// reuse codes the length of a list, which is at most most, and leaves its elements, of at least size bytes each, to the
// caller. A reader gets a list of that length, in the old memory if that is large enough. reuse returns false after an
// error.
func reuse[T any](c *coder, v *[]T, most, size int) bool {
	n := uint32(len(*v))
	if c.u32(&n); n > uint32(most) {
		c.fail("a list of %d elements, at most %d are allowed", n, most)
	} else if !c.writing && c.err == nil && int(n)*size > len(c.p) {
		c.fail("%d elements in %d bytes", n, len(c.p))
	}
	if c.err != nil {
		return false
	}
	if !c.writing {
		*v = slices.Grow((*v)[:0], int(n))[:n]
	}
	return true
}

// bytes reads at most most bytes behind their length in four bytes. It borrows them.
func (c *coder) bytes(most int) []byte {
	var n uint32
	if c.u32(&n); n > uint32(most) {
		c.fail("%d bytes, at most %d are allowed", n, most)
		return nil
	}
	return c.next(int(n))
}

// yes is a yes or no, in one byte.
func (c *coder) yes(v *bool) {
	var flag uint8
	if *v {
		flag = 1
	}
	if c.u8(&flag); flag > 1 {
		c.fail("flags %#x", flag)
	}
	*v = flag == 1
}
