package inbox

import (
	"fmt"
	"sync"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
)

// messageLists holds the lists that CarryAll builds for its Put. It comes from a pool, and belongs to one Waiter.
type messageLists struct {
	bodies  [][]byte
	headers [][]message.Header
	keyed   []message.Header // of the messages with Key: their headers and the key header
}

var listsPool = sync.Pool{New: func() any { return new(messageLists) }}

// maxPooledLists bounds the length of lists that go back to the pool.
const maxPooledLists = 4096

func (l *messageLists) free() {
	if cap(l.bodies) > maxPooledLists || cap(l.keyed) > maxPooledLists {
		return
	}
	clear(l.bodies) // drop the references to memory that was borrowed from the caller
	clear(l.headers)
	clear(l.keyed)
	l.bodies, l.headers, l.keyed = l.bodies[:0], l.headers[:0], l.keyed[:0]
	listsPool.Put(l)
}

// AnyPartition is the partition that CarryAll returns when no message has a key, and with an error.
const AnyPartition = -1

// CarryAll makes ms the messages of the put. partition is the partition to which their keys belong in a topic with this
// many partitions, or AnyPartition. CarryAll fails with ErrBatchKeys if the keys belong to different partitions or the
// delays differ, and with ErrHeaders if a message has both a Key and a key header. Everything in ms is borrowed until
// Free, even after an error.
func (w *Waiter) CarryAll(ms []message.Outgoing, partitions int) (partition int, err error) {
	l := listsPool.Get().(*messageLists)
	w.lists = l
	partition, has := AnyPartition, false
	for i := range ms {
		m := &ms[i]
		headers, key, err := keyed(m, &l.keyed)
		if err != nil {
			return AnyPartition, err
		}
		if len(key) != 0 {
			n := batch.PartitionOf(key, partitions)
			if partition >= 0 && partition != n {
				return AnyPartition, errs.ErrBatchKeys
			}
			partition = n
		}
		if m.Delay != ms[0].Delay {
			return AnyPartition, errs.ErrBatchKeys
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
	return partition, nil
}

var keyHeader = []byte(message.KeyHeader)

// keyed returns the headers to store for m, and the key of m or nil. If the headers are not m's own, they are appended
// to all.
func keyed(m *message.Outgoing, all *[]message.Header) (headers []message.Header, key []byte, err error) {
	has := false
	for i := range m.Headers {
		if string(m.Headers[i].Key) == message.KeyHeader && !has {
			has, key = true, m.Headers[i].Value
		}
	}
	switch {
	case len(m.Key) == 0:
		return m.Headers, key, nil
	case has:
		return nil, nil, fmt.Errorf("%w: there is a key and a header %q, too", errs.ErrHeaders, message.KeyHeader)
	}
	n := len(*all)
	*all = append(append(*all, m.Headers...), message.Header{Key: keyHeader, Value: m.Key})
	return (*all)[n:len(*all):len(*all)], m.Key, nil
}
