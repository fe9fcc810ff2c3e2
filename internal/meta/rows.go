package meta

import (
	"bytes"
	"iter"
	"maps"
	"slices"

	"github.com/google/uuid"
)

// Rows maps partitions to their rows, by topic, so that a change of one row copies the rows of one topic and not those
// of all (see Rows.Edit). A Rows that was published is immutable, like everything in a Snapshot. The zero value is
// empty. The numbers of partitions should be small: a topic takes as much memory as its highest one needs.
type Rows[T any] struct {
	topics map[uuid.UUID][]*T // by number; nil: there is no such row. The last one of a list is never nil
	count  int
}

// Partitions are the rows of all partitions.
type Partitions = Rows[Partition]

// Get returns the row of a partition; nil if there is none.
func (r Rows[T]) Get(id PartitionID) *T {
	if rows := r.topics[id.Topic]; int64(id.Partition) < int64(len(rows)) {
		return rows[id.Partition]
	}
	return nil
}

// Len returns how many rows there are.
func (r Rows[T]) Len() int { return r.count }

// All yields all rows, in order of topic and number.
func (r Rows[T]) All() iter.Seq2[PartitionID, *T] {
	return func(yield func(PartitionID, *T) bool) {
		topics := slices.SortedFunc(maps.Keys(r.topics), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		for _, topic := range topics {
			for n, row := range r.topics[topic] {
				if row != nil && !yield(PartitionID{Topic: topic, Partition: uint32(n)}, row) {
					return
				}
			}
		}
	}
}

// IDs returns the partitions that have a row, in order of topic and number.
func (r Rows[T]) IDs() []PartitionID {
	ids := make([]PartitionID, 0, r.count)
	for id := range r.All() {
		ids = append(ids, id)
	}
	return ids
}

// With returns a copy of r in which id has another row; nil: none.
func (r Rows[T]) With(id PartitionID, row *T) Rows[T] {
	e := r.Edit()
	e.Set(id, row)
	return e.Rows()
}

// Without returns a copy of r that has no rows of a topic.
func (r Rows[T]) Without(topic uuid.UUID) Rows[T] {
	e := r.Edit()
	for _, row := range r.topics[topic] {
		if row != nil {
			e.rows.count--
		}
	}
	delete(e.rows.topics, topic)
	return e.Rows()
}

// RowsEditor makes a changed copy of a Rows. One goroutine uses it.
type RowsEditor[T any] struct {
	rows   Rows[T]
	copied map[uuid.UUID]bool // topics whose list is not shared with the original
}

// Edit returns an editor that begins with r. It copies the list of topics, and later the list of each topic that is
// changed.
func (r Rows[T]) Edit() *RowsEditor[T] {
	e := &RowsEditor[T]{rows: Rows[T]{maps.Clone(r.topics), r.count}, copied: map[uuid.UUID]bool{}}
	if e.rows.topics == nil {
		e.rows.topics = map[uuid.UUID][]*T{}
	}
	return e
}

// Set sets the row of a partition, or removes it if row is nil.
func (e *RowsEditor[T]) Set(id PartitionID, row *T) {
	list, n := e.rows.topics[id.Topic], int(id.Partition)
	if !e.copied[id.Topic] {
		list, e.copied[id.Topic] = slices.Clone(list), true
	}
	if row != nil && n >= len(list) {
		list = append(list, make([]*T, n+1-len(list))...)
	}
	if n < len(list) {
		if list[n] != nil {
			e.rows.count--
		}
		if list[n] = row; row != nil {
			e.rows.count++
		}
	}
	for len(list) > 0 && list[len(list)-1] == nil {
		list = list[:len(list)-1]
	}
	if e.rows.topics[id.Topic] = list; len(list) == 0 {
		delete(e.rows.topics, id.Topic)
		delete(e.copied, id.Topic)
	}
}

// Rows returns the rows as they are now. What it has returned before must not be used after another Set.
func (e *RowsEditor[T]) Rows() Rows[T] { return e.rows }
