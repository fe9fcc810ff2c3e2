package fold

import "penstock/segment"

// IDRange is the half-open range [From, To) of message ids of one partition.
type IDRange struct{ From, To segment.MsgID }

// Count returns how many ids the range holds.
func (r IDRange) Count() uint64 {
	if r.To <= r.From {
		return 0
	}
	return uint64(r.To - r.From)
}

// IDSet is a set of message ids, stored as sorted ranges that neither touch nor overlap. In-order confirmation grows it
// at the end and cuts it at the front, which takes O(1) amortised. Other changes take a binary search and a move of the
// shorter side. The zero value is empty. IDSet has no size limit: its users must bound Len. A copied IDSet shares
// memory with the original (see Clone).
type IDSet struct {
	r    []IDRange // the set is r[head:]; r[:head] was cut and has room for inserts near the front
	head int
}

// maxKeptRanges bounds the memory that an emptied set keeps for reuse (64 KiB).
const maxKeptRanges = 4096

func (s *IDSet) Len() int { return len(s.r) - s.head }

// Ranges returns the ranges in order. They are borrowed until the next change.
func (s *IDSet) Ranges() []IDRange { return s.r[s.head:] }

// First returns the lowest range.
func (s *IDSet) First() (IDRange, bool) {
	if s.Len() == 0 {
		return IDRange{}, false
	}
	return s.r[s.head], true
}

// Count returns the number of ids of the set in [from, to).
func (s *IDSet) Count(from, to segment.MsgID) (n uint64) {
	live := s.r[s.head:]
	for i := s.search(from); i < len(live) && live[i].From < to; i++ {
		n += IDRange{max(from, live[i].From), min(to, live[i].To)}.Count()
	}
	return n
}

func (s *IDSet) Contains(id segment.MsgID) bool { return s.covers(IDRange{id, id + 1}) }

// covers says whether the set contains all ids of r; an empty range is always covered.
func (s *IDSet) covers(r IDRange) bool {
	if r.From >= r.To {
		return true
	}
	live := s.r[s.head:]
	i := s.search(r.From + 1)
	return i < len(live) && live[i].From <= r.From && r.To <= live[i].To
}

// NextGap returns the lowest id at or above id that is not in the set.
func (s *IDSet) NextGap(id segment.MsgID) segment.MsgID {
	live := s.r[s.head:]
	if n := len(live); n == 0 || live[n-1].To <= id {
		return id
	}
	if i := s.search(id + 1); live[i].From <= id {
		return live[i].To
	}
	return id
}

// Gap returns how many ids from id on, which is not in the set, are not in it.
func (s *IDSet) Gap(id segment.MsgID) uint64 {
	live := s.r[s.head:]
	if n := len(live); n == 0 || live[n-1].To <= id {
		return ^uint64(0)
	}
	return uint64(live[s.search(id+1)].From - id)
}

func (s *IDSet) Add(id segment.MsgID) bool { return s.AddRange(IDRange{id, id + 1}) == 1 }

// AddRange adds the ids of r and returns how many were new.
func (s *IDSet) AddRange(r IDRange) uint64 {
	if r.From >= r.To {
		return 0
	}
	n := s.Len()
	if n == 0 || r.From > s.r[len(s.r)-1].To {
		s.push(r)
		return r.Count()
	}
	if last := &s.r[len(s.r)-1]; r.From >= last.From {
		if r.To <= last.To {
			return 0
		}
		added := uint64(r.To - last.To)
		last.To = r.To
		return added
	}
	live := s.r[s.head:]
	i := s.search(r.From)
	j, known := i, uint64(0)
	for ; j < n && live[j].From <= r.To; j++ {
		known += live[j].Count()
	}
	if i == j {
		s.insert(i, r)
		return r.Count()
	}
	merged := IDRange{min(r.From, live[i].From), max(r.To, live[j-1].To)}
	live[i] = merged
	s.remove(i+1, j)
	return merged.Count() - known
}

// CutBelow removes every id below id.
func (s *IDSet) CutBelow(id segment.MsgID) {
	for s.head < len(s.r) && s.r[s.head].To <= id {
		s.head++
	}
	if s.head == len(s.r) {
		s.Clear()
		return
	}
	if first := &s.r[s.head]; first.From < id {
		first.From = id
	}
}

// Clear empties the set and keeps a bounded amount of memory for reuse.
func (s *IDSet) Clear() {
	if cap(s.r) > maxKeptRanges {
		s.r = nil
	}
	s.r, s.head = s.r[:0], 0
}

// Clone returns a copy that shares no memory.
func (s *IDSet) Clone() IDSet {
	if s.Len() == 0 {
		return IDSet{}
	}
	return IDSet{r: append([]IDRange(nil), s.r[s.head:]...)}
}

// search returns the index of the first range that ends at or above id.
func (s *IDSet) search(id segment.MsgID) int {
	live := s.r[s.head:]
	lo, hi := 0, len(live)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if live[mid].To < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// push appends a range. Before the slice would grow, push reuses the room that cutting left at the front, so a set of
// steady size never allocates.
func (s *IDSet) push(r IDRange) {
	if len(s.r) == cap(s.r) && s.head > len(s.r)/2 {
		s.r = s.r[:copy(s.r, s.r[s.head:])]
		s.head = 0
	}
	s.r = append(s.r, r)
}

// insert inserts r before live range i and moves the shorter side.
func (s *IDSet) insert(i int, r IDRange) {
	if s.head > 0 && i < s.Len()/2 {
		copy(s.r[s.head-1:], s.r[s.head:s.head+i])
		s.head--
		s.r[s.head+i] = r
		return
	}
	s.push(IDRange{})
	live := s.r[s.head:]
	copy(live[i+1:], live[i:])
	live[i] = r
}

// remove deletes the live ranges [i, j) and moves the shorter side.
func (s *IDSet) remove(i, j int) {
	live := s.r[s.head:]
	if i < len(live)-j {
		copy(live[j-i:j], live[:i])
		s.head += j - i
		return
	}
	s.r = s.r[:s.head+i+copy(live[i:], live[j:])]
}

// ConfirmRange adds r to a confirmed state: all ids below *below, and those in above. It keeps the normal form, in
// which no range of above touches *below. Both the machine and the fold confirm through this function, so that they
// always agree.
func ConfirmRange(below *segment.MsgID, above *IDSet, r IDRange) {
	if r.From > *below {
		above.AddRange(r)
		return
	}
	if r.To <= *below {
		return
	}
	*below = r.To
	for {
		first, ok := above.First()
		if !ok || first.From > *below {
			return
		}
		*below = max(*below, first.To)
		above.CutBelow(*below)
	}
}
