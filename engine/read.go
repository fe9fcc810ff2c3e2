package engine

import (
	"context"
	"errors"
	"time"

	"penstock/batch"
	"penstock/internal/node"
)

// From is a place in a partition's log. The zero value is the oldest message that is kept.
type From struct{ start node.Start }

// FromNewest is behind the newest message.
func FromNewest() From { return From{node.Start{Kind: node.StartNewest}} }

// FromID is at a message of the partition.
func FromID(id ID) From { return From{node.Start{Kind: node.StartAtID, ID: node.ID(id)}} }

// FromTime is at the first message that was stored at that time or later.
func FromTime(at time.Time) From { return From{node.Start{Kind: node.StartAtTime, Time: at}} }

func (f From) seek() node.SeekTo {
	switch f.start.Kind {
	case node.StartNewest:
		return node.SeekTo{Kind: node.SeekEnd}
	case node.StartAtID:
		return node.SeekTo{Kind: node.SeekID, ID: f.start.ID}
	case node.StartAtTime:
		return node.SeekTo{Kind: node.SeekTime, Time: f.start.Time}
	}
	return node.SeekTo{Kind: node.SeekBeginning}
}

// TrimmedError says that the messages at the place to read are not kept any more. First is the oldest one that is.
type TrimmedError struct{ First ID }

// Error implements error.
func (e *TrimmedError) Error() string { return (&node.TrimmedError{First: node.ID(e.First)}).Error() }

// readBytes is how much of the log Read looks at a time.
const readBytes = 1 << 20

// Read calls visit for each committed message of a partition in the order of its log, whatever channels have finished,
// waits for new ones, and returns nil when ctx ends. Nothing is stored about it: a program that wants to go on later
// keeps the id behind the last one. The node must lead the partition: otherwise, and when it loses it, Read returns
// ErrNoLeader. An error of visit ends it, and is returned; a *TrimmedError says that retention was faster.
//
// A message with a delay comes at its place in the log, without the delay.
func (t *Topic) Read(ctx context.Context, partition int, from From, visit func(*Delivery) error) error {
	r, err := t.t.OpenReader(partition, from.start)
	if err != nil {
		return trimmed(err)
	}
	defer r.Close()
	var scratch []byte
	for {
		s, err := r.Next(ctx, readBytes)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return trimmed(err)
		}
		scratch, err = each(s.Batches, s.Next, scratch, visit)
		s.Release()
		if err != nil {
			return err
		}
	}
}

func trimmed(err error) error {
	var t *node.TrimmedError
	if errors.As(err, &t) {
		return &TrimmedError{First: ID(t.First)}
	}
	return err
}

// each calls visit for the messages of batches from next on. It returns the memory for decompressed bodies.
func each(batches []byte, next node.ID, scratch []byte, visit func(*Delivery) error) ([]byte, error) {
	var (
		all     batch.BatchIter
		records batch.RecordIter
		d       Delivery
	)
	for all.Reset(batches); ; {
		h, body, ok := all.Next()
		if !ok {
			return scratch, all.Err()
		}
		if h.Control() {
			continue
		}
		plain, err := batch.DecompressBody(h, body, scratch) // the log has verified it
		if err != nil {
			return scratch, err
		}
		if h.Codec != batch.CodecNone {
			scratch = plain
		}
		id := batch.MakeID(next.Partition(), h.FirstID)
		for records.Reset(h, plain); ; id++ {
			r := records.NextRef()
			if r == nil {
				break
			}
			if id < next {
				continue
			}
			d.ID, d.Body, d.Headers = ID(id), r.Body, headers(d.Headers[:0], r.Headers)
			d.Published = time.Unix(0, h.Created).Add(time.Duration(r.TimeDelta) * time.Microsecond)
			if err := visit(&d); err != nil {
				return scratch, err
			}
		}
		if err := records.Err(); err != nil {
			return scratch, err
		}
	}
}
