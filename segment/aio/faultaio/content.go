package faultaio

import "sync/atomic"

const (
	pageBytes  = 4096
	chunkPages = 64
	chunkBytes = pageBytes * chunkPages
)

// owners numbers contents, so that each knows which pages it may change in place.
var owners atomic.Uint64

// content is the bytes of one file, sparse and copy-on-write: clones share every page until
// one of them writes it. A missing chunk or page is zeros.
type content struct {
	owner  uint64
	size   int64
	chunks []*chunk // may be shorter than size asks for
}

type chunk struct {
	owner uint64
	pages [chunkPages]*page
}

type page struct {
	owner uint64
	b     [pageBytes]byte
}

// clone returns an equal content. Both lose the right to change the shared pages in place, which is
// why the receiver changes its owner too.
func (c *content) clone() content {
	c.owner = owners.Add(1)
	return content{owner: owners.Add(1), size: c.size, chunks: append([]*chunk(nil), c.chunks...)}
}

// page returns the page at number n for writing.
func (c *content) page(n int64) *page {
	i := int(n / chunkPages)
	for len(c.chunks) <= i {
		c.chunks = append(c.chunks, nil)
	}
	ch := c.chunks[i]
	if ch == nil {
		ch = &chunk{owner: c.owner}
	} else if ch.owner != c.owner {
		ch = &chunk{owner: c.owner, pages: ch.pages}
	}
	c.chunks[i] = ch
	p := ch.pages[n%chunkPages]
	if p == nil {
		p = &page{owner: c.owner}
	} else if p.owner != c.owner {
		p = &page{owner: c.owner, b: p.b}
	}
	ch.pages[n%chunkPages] = p
	return p
}

// write puts p at off and grows the size if needed.
func (c *content) write(p []byte, off int64) {
	c.size = max(c.size, off+int64(len(p)))
	for len(p) > 0 {
		n := copy(c.page(off / pageBytes).b[off%pageBytes:], p)
		p, off = p[n:], off+int64(n)
	}
}

// read fills p from off; what was never written is zeros.
func (c *content) read(p []byte, off int64) {
	for len(p) > 0 {
		n := int(min(int64(len(p)), pageBytes-off%pageBytes))
		if pg := c.peek(off / pageBytes); pg == nil {
			clear(p[:n])
		} else {
			copy(p[:n], pg.b[off%pageBytes:])
		}
		p, off = p[n:], off+int64(n)
	}
}

// peek returns the page at number n for reading, or nil.
func (c *content) peek(n int64) *page {
	if i := int(n / chunkPages); i < len(c.chunks) && c.chunks[i] != nil {
		return c.chunks[i].pages[n%chunkPages]
	}
	return nil
}

// cut makes the content at most size long; bytes that return later are zeros.
func (c *content) cut(size int64) {
	if c.size <= size {
		return
	}
	last := (size + pageBytes - 1) / pageBytes
	for n := last; n < (c.size+pageBytes-1)/pageBytes; n++ {
		if c.peek(n) != nil {
			*c.page(n) = page{owner: c.owner}
		}
	}
	if rest := size % pageBytes; rest != 0 && c.peek(size/pageBytes) != nil {
		clear(c.page(size / pageBytes).b[rest:])
	}
	c.size = size
}
