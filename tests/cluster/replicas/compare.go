package replicas

import (
	"encoding/json"
	"fmt"
	"sort"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/segment/aio"
)

// maxMetaBytes bounds node.json.
const maxMetaBytes = 1 << 20

// nodeOf reads the store's uuid, which its commit log carries.
func nodeOf(disk aio.Disk) (uuid.UUID, error) {
	data, err := disk.ReadFile("node.json", maxMetaBytes)
	if err != nil {
		return uuid.Nil, err
	}
	var n struct {
		StoreID uuid.UUID `json:"store_id"`
	}
	err = json.Unmarshal(data, &n)
	return n.StoreID, err
}

// Difference is where two replicas are not the same.
type Difference struct {
	ID     segment.Identity
	A, B   string // paths of the nodes
	Detail string
}

func (d Difference) String() string {
	return fmt.Sprintf("partition %d of topic %s: %s and %s: %s", d.ID.Partition, d.ID.Topic, d.A, d.B, d.Detail)
}

// Result is what a comparison found.
type Result struct {
	Partitions  int   // that more than one node holds
	Bytes       int64 // compared, counted once per pair
	Differences []Difference
}

// Compare holds, for each partition, every replica against the longest one: where both have a position, the bytes are
// the same. With whole, both also end together, except for control batches: all replicas were in sync and at rest when
// the nodes stopped.
func Compare(nodes []*Node, whole bool) *Result {
	r := &Result{}
	holders := map[segment.Identity][]*Node{}
	for _, n := range nodes {
		for id := range n.Logs {
			holders[id] = append(holders[id], n)
		}
	}
	for id, on := range holders {
		if len(on) < 2 {
			continue
		}
		r.Partitions++
		sort.SliceStable(on, func(i, j int) bool { return next(on[i].Logs[id]) > next(on[j].Logs[id]) })
		for _, n := range on[1:] {
			if detail := r.pair(on[0].Logs[id], n.Logs[id], whole); detail != "" {
				r.Differences = append(r.Differences, Difference{id, on[0].Path, n.Path, detail})
			}
		}
	}
	return r
}

// next is the position behind a log.
func next(l Log) segment.Position {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].Position + 1
}

// pair compares the longest log with another one.
func (r *Result) pair(a, b Log, whole bool) string {
	if len(a) > 0 && len(b) > 0 && a[0].Position < next(b) {
		// Retention may have removed more of one than of the other.
		if a[0].Position < b[0].Position {
			a = a[b[0].Position-a[0].Position:]
		} else {
			b = b[a[0].Position-b[0].Position:]
		}
		for i := range b {
			if a[i] != b[i] {
				return fmt.Sprintf("they differ at position %d: %+v and %+v", a[i].Position, a[i], b[i])
			}
			r.Bytes += int64(b[i].Bytes)
		}
		a = a[len(b):]
	}
	if !whole {
		return ""
	}
	for i := range a {
		if !a[i].Control {
			return fmt.Sprintf("one ends before position %d, the other has %d messages there", a[i].Position, a[i].Count)
		}
	}
	return ""
}

// Messages is how many messages the nodes' partitions ever took, by the longest replica of each: ids are dense and
// begin at 0.
func Messages(nodes []*Node) uint64 {
	ends := map[segment.Identity]uint64{}
	for _, n := range nodes {
		for id, log := range n.Logs {
			if len(log) > 0 {
				last := &log[len(log)-1]
				ends[id] = max(ends[id], uint64(last.FirstID)+uint64(last.Count))
			}
		}
	}
	sum := uint64(0)
	for _, end := range ends {
		sum += end
	}
	return sum
}
