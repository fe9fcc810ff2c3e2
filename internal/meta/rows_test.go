package meta

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
)

// A table is a map whose former versions stay as they were.
func TestRows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var rows Partitions
	want := map[PartitionID]*Partition{}
	type version struct {
		rows Partitions
		want map[PartitionID]*Partition
	}
	var past []version
	for i := range 300 {
		if topic := (uuid.UUID{byte(r.IntN(3))}); i%10 == 9 {
			rows = rows.Without(topic)
			maps.DeleteFunc(want, func(id PartitionID, _ *Partition) bool { return id.Topic == topic })
		}
		e := rows.Edit()
		for range r.IntN(4) {
			id := PartitionID{Topic: uuid.UUID{byte(r.IntN(3))}, Partition: uint32(r.IntN(8))}
			row := &Partition{ID: id}
			if want[id] = row; r.IntN(2) == 0 {
				row = nil
				delete(want, id)
			}
			e.Set(id, row)
			rows = e.Rows()
		}
		past = append(past, version{rows, maps.Clone(want)})
	}
	for i, v := range past {
		if got := maps.Collect(v.rows.All()); !maps.Equal(got, v.want) || v.rows.Len() != len(v.want) {
			t.Fatalf("version %d has %d rows, %d by its count, and not its %d", i, len(got), v.rows.Len(), len(v.want))
		}
		for topic := range 4 {
			for n := range uint32(10) {
				id := PartitionID{Topic: uuid.UUID{byte(topic)}, Partition: n}
				if v.rows.Get(id) != v.want[id] {
					t.Fatalf("version %d: %v is another row", i, id)
				}
			}
		}
		if ids := v.rows.IDs(); !slices.IsSortedFunc(ids, func(a, b PartitionID) int {
			return slices.Compare(append(a.Topic[:], byte(a.Partition)), append(b.Topic[:], byte(b.Partition)))
		}) {
			t.Fatalf("version %d is not in order: %v", i, ids)
		}
	}
}
