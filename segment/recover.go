package segment

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"penstock/segment/aio"
)

// Recover finds the end of a log from its segment files alone, by reading and verifying all of
// it: for a checkpoint that is lost, and for tools. It changes nothing. The state is that after the last batch of the longest
// good chain from the log's start. A CorruptError beside it says that the chain ended at something other than unwritten
// space: a torn write or damage, which only the commit log can tell apart. With any other error the state means nothing.
func Recover(disk aio.Disk, dir string, id Identity, opts Options) (State, error) {
	bound, err := lastSegment(disk, dir, id)
	if err != nil || bound.End == 0 {
		return State{}, err
	}
	l, err := Open(disk, dir, id, bound, opts)
	if err != nil {
		return State{}, err
	}
	defer func() { _ = l.Close() }()
	return l.walk()
}

// lastSegment is a state whose End is not below the log's: the end of the space in its newest file that is whole.
func lastSegment(disk aio.Disk, dir string, id Identity) (State, error) {
	numbers, err := listSegments(disk, dir)
	if err != nil {
		return State{}, err
	}
	for _, number := range slices.Backward(numbers) {
		h, _, err := readSegmentHeader(disk, path.Join(dir, segmentName(number)))
		switch {
		case errors.Is(err, errSegHeader): // a file that was being made, perhaps; what is below it decides
			continue
		case err != nil:
			return State{}, err
		case h.id != id || h.number != number:
			return State{}, &CorruptError{Path: path.Join(dir, segmentName(number)), Detail: "it is of another log"}
		}
		return State{End: h.base + Offset(h.capacity), Segment: number, SegmentBase: h.base, SegmentCapacity: h.capacity}, nil
	}
	return State{}, nil
}

// walk follows the chain from the start. The log was opened with an end that may lie in unwritten space.
func (l *Log) walk() (State, error) {
	f := l.segs[0]
	if f.broken != nil {
		return State{}, f.broken
	}
	st := State{End: f.first, Next: f.firstPos, NextID: f.firstID, Segment: f.number, SegmentBase: f.base, SegmentCapacity: f.capacity}
	var v View
	var it BatchIter
	for i := 0; ; {
		if i+1 < len(l.segs) && st.End >= l.segs[i+1].base {
			i++
			continue
		}
		err := l.View(&v, st.End, WriterBytes)
		switch {
		case errors.Is(err, ErrAtEnd):
			return st, nil
		case err != nil:
			return st, l.chainEnd(i, st, err)
		}
		f = l.segs[i]
		st.Segment, st.SegmentBase, st.SegmentCapacity = f.number, f.base, f.capacity
		for it.Reset(v.Bytes()); ; {
			h, _, ok := it.Next()
			if !ok {
				break
			}
			st.Advance(h)
		}
		v.Release()
	}
}

// chainEnd says whether the chain may end where it does: before unwritten space in the last segment.
func (l *Log) chainEnd(i int, st State, err error) error {
	f := l.segs[i]
	if i+1 < len(l.segs) {
		if next := l.segs[i+1]; next.broken == nil && errors.Is(err, ErrUnwritten) {
			return f.corrupt(f.at(st.End), fmt.Errorf("%w: the next segment begins at offset %d", ErrUnwritten, next.base))
		}
		return err
	}
	if errors.Is(err, ErrUnwritten) || int64(st.End-f.base)+HeaderBytes > f.capacity && errors.Is(err, ErrInvalid) {
		return nil
	}
	return err
}
