package engine

import (
	"context"
	"fmt"
	"sync"

	"penstock/engine/inbox"
)

// PublishMessage is Publish for a message with a key, headers or a delay. It borrows everything in m until it returns.
func (t *Topic) PublishMessage(ctx context.Context, m Outgoing) (ID, error) {
	one := [1]Outgoing{m}
	return t.PublishMessages(ctx, one[:])
}

// PublishMessages is PublishBatch for messages with keys, headers or a delay. All go to one partition, so their keys
// must belong to the same partition and their delays must be equal: otherwise it returns ErrBatchKeys. It borrows
// everything in ms until it returns.
func (t *Topic) PublishMessages(ctx context.Context, ms []Outgoing) (ID, error) {
	w, l := inbox.NewWaiter(), listsPool.Get().(*messageLists)
	defer l.free()
	defer w.Free()
	to, has := -1, false
	for i := range ms {
		m := &ms[i]
		headers, key, err := keyed(m, &l.keyed)
		if err != nil {
			return 0, err
		}
		if len(key) != 0 {
			n := t.PartitionFor(key)
			if to >= 0 && to != n {
				return 0, ErrBatchKeys
			}
			to = n
		}
		if m.Delay != ms[0].Delay {
			return 0, ErrBatchKeys
		}
		l.bodies, l.headers = append(l.bodies, m.Body), append(l.headers, headers)
		has = has || len(headers) != 0
	}
	w.Messages = l.bodies
	if has {
		w.Headers = l.headers
	}
	if len(ms) > 0 {
		w.Defer = ms[0].Delay
	}
	w.Alone, w.Waits = true, true
	var pt *partition
	if to >= 0 {
		pt = t.partitions()[to]
	}
	if err := t.submit(ctx, &w.Put, pt); err != nil {
		return 0, err
	}
	return w.Wait(ctx)
}

// messageLists has the lists that PublishMessages builds for its Put. They come from a pool.
type messageLists struct {
	bodies  [][]byte
	headers [][]Header
	keyed   []Header // of the messages with Key: their headers and the key
}

var listsPool = sync.Pool{New: func() any { return new(messageLists) }}

// maxPooledLists bounds the length of lists that go back to the pool.
const maxPooledLists = 4096

func (l *messageLists) free() {
	if cap(l.bodies) > maxPooledLists || cap(l.keyed) > maxPooledLists {
		return
	}
	clear(l.bodies) // do not keep what was borrowed from the caller
	clear(l.headers)
	clear(l.keyed)
	l.bodies, l.headers, l.keyed = l.bodies[:0], l.headers[:0], l.keyed[:0]
	listsPool.Put(l)
}

var keyHeader = []byte(KeyHeader)

// keyed returns the headers of m to store, and the key or nil. If the headers are not m's own, they are appended to
// all.
func keyed(m *Outgoing, all *[]Header) (headers []Header, key []byte, err error) {
	has := false
	for i := range m.Headers {
		if string(m.Headers[i].Key) == KeyHeader && !has {
			has, key = true, m.Headers[i].Value
		}
	}
	switch {
	case len(m.Key) == 0:
		return m.Headers, key, nil
	case has:
		return nil, nil, fmt.Errorf("%w: there is a key and a header %q, too", ErrHeaders, KeyHeader)
	}
	n := len(*all)
	*all = append(append(*all, m.Headers...), Header{Key: keyHeader, Value: m.Key})
	return (*all)[n:len(*all):len(*all)], m.Key, nil
}

// PartitionFor returns the partition of a key. Let h be the FNV-1a hash (64 bits) of the key; then the partition is
//
//	h ^= h >> 33;  h *= 0xff51afd7ed558ccd;  h ^= h >> 33;  h mod Partitions()
//
// This is the same in every version, on every node and in every client. Without the second step, partitions would
// depend on few bits of each byte, because FNV-1a only carries changes to higher bits. When a topic gets more
// partitions, most keys move to another one.
func (t *Topic) PartitionFor(key []byte) int { return int(keyHash(key) % uint64(t.Partitions())) }

// keyHash must never change: see PartitionFor.
func keyHash(key []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, b := range key {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// SubmitTo is Submit to one partition, 0 to Partitions()-1. For any other number it returns ErrNoPartition.
func (t *Topic) SubmitTo(partition int, p *inbox.Put) error {
	parts := t.partitions()
	if partition < 0 || partition >= len(parts) {
		return ErrNoPartition
	}
	return t.submit(context.Background(), p, parts[partition])
}

// CheckHeaders returns nil if a message may have these headers, and else an ErrHeaders that tells why not. A Put is
// refused as a whole, so a server that gathers messages of several requests in one Put checks each request first.
func (e *Engine) CheckHeaders(headers []Header) error {
	return e.limits.CheckHeaders(headers, false)
}
