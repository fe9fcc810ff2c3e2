package faultaio

import (
	"bytes"
	"sync/atomic"
)

const (
	pageBytes  = 4096
	chunkPages = 64
	chunkBytes = pageBytes * chunkPages
)

// owners numbers the contents. By the number a content knows which pages it may change in place.
var owners atomic.Uint64

// content holds the bytes of one file, sparse and copy-on-write: clones share every page until one of them writes it. A
// missing chunk or page is zeros.
type content struct {
	owner  uint64
	size   int64
	chunks []*chunk // may be shorter than size requires
}

// chunk keeps the owners of its pages beside the pages, so that a page is exactly one allocation of pageBytes.
type chunk struct {
	owner  uint64
	pages  [chunkPages]*page
	owners [chunkPages]uint64
}

type page [pageBytes]byte

var zeroPage page

func isZero(p []byte) bool { return p[0] == 0 && bytes.Equal(p, zeroPage[:len(p)]) }

// clone returns an equal content. Neither of the two may change the shared pages in place any more, so the receiver
// gets a new owner, too.
func (c *content) clone() content {
	c.owner = owners.Add(1)
	return content{owner: owners.Add(1), size: c.size, chunks: append([]*chunk(nil), c.chunks...)}
}

// own returns the chunk of page n for writing, and the page's index in the chunk.
func (c *content) own(n int64) (*chunk, int) {
	i := int(n / chunkPages)
	for len(c.chunks) <= i {
		c.chunks = append(c.chunks, nil)
	}
	ch := c.chunks[i]
	if ch == nil {
		ch = &chunk{owner: c.owner}
	} else if ch.owner != c.owner {
		ch = &chunk{owner: c.owner, pages: ch.pages, owners: ch.owners}
	}
	c.chunks[i] = ch
	return ch, int(n % chunkPages)
}

// page returns page n for writing.
func (c *content) page(n int64) *page {
	ch, k := c.own(n)
	p := ch.pages[k]
	if p == nil {
		p = new(page)
	} else if ch.owners[k] != c.owner {
		own := *p
		p = &own
	}
	ch.pages[k], ch.owners[k] = p, c.owner
	return p
}

// set makes p, which belongs to owner, page n. nil stands for zeros.
func (c *content) set(n int64, p *page, owner uint64) {
	if p == nil && c.peek(n) == nil {
		return
	}
	ch, k := c.own(n)
	ch.pages[k], ch.owners[k] = p, owner
}

// ownerOf is the owner of page n.
func (c *content) ownerOf(n int64) uint64 { return c.chunks[n/chunkPages].owners[n%chunkPages] }

// write puts p at off and grows the size if needed.
func (c *content) write(p []byte, off int64) {
	c.size = max(c.size, off+int64(len(p)))
	for len(p) > 0 {
		n := int(min(int64(len(p)), pageBytes-off%pageBytes))
		if n == pageBytes && isZero(p[:n]) {
			c.set(off/pageBytes, nil, 0)
		} else {
			copy(c.page(off / pageBytes)[off%pageBytes:], p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
}

// read fills p from off; bytes that were never written are zeros.
func (c *content) read(p []byte, off int64) {
	for len(p) > 0 {
		n := int(min(int64(len(p)), pageBytes-off%pageBytes))
		if pg := c.peek(off / pageBytes); pg == nil {
			clear(p[:n])
		} else {
			copy(p[:n], pg[off%pageBytes:])
		}
		p, off = p[n:], off+int64(n)
	}
}

// peek returns page n for reading, or nil if it is all zeros.
func (c *content) peek(n int64) *page {
	if i := int(n / chunkPages); i < len(c.chunks) && c.chunks[i] != nil {
		return c.chunks[i].pages[n%chunkPages]
	}
	return nil
}

// cut shortens the content to size. Bytes beyond size that reappear later are zeros.
func (c *content) cut(size int64) {
	if c.size <= size {
		return
	}
	last := (size + pageBytes - 1) / pageBytes
	for n := last; n < (c.size+pageBytes-1)/pageBytes; n++ {
		c.set(n, nil, 0)
	}
	if rest := size % pageBytes; rest != 0 && c.peek(size/pageBytes) != nil {
		clear(c.page(size / pageBytes)[rest:])
	}
	c.size = size
}

// pair is what a file shows, and the part of it that is on stable storage. Where both are equal they share the page,
// whose owner is both: such a page may be changed in place, for both contents at once.
type pair struct {
	now     content // what reads show
	durable content // what is on stable storage
	both    uint64  // owner of pages that now and durable share with nobody else
}

func newPair() pair {
	return pair{content{owner: owners.Add(1)}, content{owner: owners.Add(1)}, owners.Add(1)}
}

func (t *pair) clone() pair {
	t.both = owners.Add(1)
	return pair{t.now.clone(), t.durable.clone(), owners.Add(1)}
}

// write writes p to both contents.
func (t *pair) write(p []byte, off int64) {
	if (off|int64(len(p)))%pageBytes != 0 {
		t.now.write(p, off)
		t.durable.write(p, off)
		return
	}
	t.now.size, t.durable.size = max(t.now.size, off+int64(len(p))), max(t.durable.size, off+int64(len(p)))
	for ; len(p) > 0; p, off = p[pageBytes:], off+pageBytes {
		n := off / pageBytes
		old := t.now.peek(n)
		switch {
		case isZero(p[:pageBytes]):
			t.now.set(n, nil, 0)
			t.durable.set(n, nil, 0)
		case old != nil && old == t.durable.peek(n) && t.now.ownerOf(n) == t.both && t.durable.ownerOf(n) == t.both:
			copy(old[:], p)
		default:
			t.share(n, (*page)(bytes.Clone(p[:pageBytes])))
		}
	}
}

func (t *pair) share(n int64, p *page) {
	t.now.set(n, p, t.both)
	t.durable.set(n, p, t.both)
}

// settle makes durable what now shows in [off, end).
func (t *pair) settle(off, end int64) {
	for n := off / pageBytes; n*pageBytes < end; n++ {
		switch p := t.now.peek(n); {
		case p == t.durable.peek(n):
		case p != nil && t.now.ownerOf(n) == t.now.owner:
			t.share(n, p)
		default: // a clone may share the page
			t.durable.set(n, p, 0)
		}
	}
}
