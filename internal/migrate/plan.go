package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"sort"
)

// MaxIndexedCount bounds the number of different messages in the queues of one topic if two or more of its channels
// have messages: their ids are then sorted in memory, at about 100 bytes each. A topic with one such channel has no
// limit.
const MaxIndexedCount = 16 << 20

// errTooMany is returned for a topic that exceeds MaxIndexedCount.
var errTooMany = errors.New("migrate: too many messages lie in the queues of several channels of one topic")

// plan is the order in which the messages in the queues of one topic's channels are published. Each message is
// published once, and the messages are sorted by the set of channels that have them. In nsqd each channel has its own
// copies. In the target all channels read one log, so the messages that a channel did not have in nsqd must be
// confirmed for that channel. Sorted by set, those messages form few long runs instead of many short ones, and most of
// them lie either before the point at which the channel is created, or behind the last message that it wants.
type plan struct {
	channels []plannedChannel
	total    int64
	runs     []run   // in order of index, without gaps
	entries  []entry // nil: the messages are those of stream
	stream   *Queue
	queues   []*Queue // the channels' queues, and then the topic's own
}

type plannedChannel struct {
	name   string
	paused bool
	first  int64 // index of the first message that it has; plan.total if none
}

// run is a range of messages that belong to the same set of channels.
type run struct {
	start, end int64
	set        chanSet
}

// entry is one message of the plan, with the location of one copy of it.
type entry struct {
	timestamp int64
	offset    int64
	file      int64
	bytes     int32
	set       int32
	queue     uint32
}

// chanSet is a set of channel numbers, as bits. The number after that of the last channel stands for the topic itself.
type chanSet []uint64

func (s chanSet) has(i int) bool { return i < len(s)*64 && s[i/64]&(1<<(i%64)) != 0 }

func (s chanSet) with(i int) chanSet {
	out := slices.Clone(s)
	for len(out) <= i/64 {
		out = append(out, 0)
	}
	out[i/64] |= 1 << (i % 64)
	return out
}

func (s chanSet) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// newPlan reads the queues of a topic's channels. counts is the result of the earlier Scan.
func newPlan(t *Topic, counts map[*Queue]Counts) (*plan, error) {
	p := new(plan)
	var full []int
	for i := range t.Channels {
		c := &t.Channels[i]
		p.channels = append(p.channels, plannedChannel{name: c.Name, paused: c.Paused})
		p.queues = append(p.queues, c.Queue)
		if counts[c.Queue].Messages > 0 {
			full = append(full, i)
		}
	}
	p.queues = append(p.queues, t.Queue)
	topic := counts[t.Queue].Messages
	switch {
	case len(full) == 0:
	case len(full) == 1 && (topic == 0 || topic+counts[p.queues[full[0]]].Messages > MaxIndexedCount):
		// After a crash of nsqd the topic's last messages may be in the channel's queue as well. They are then
		// published twice, because finding them would need more than MaxIndexedCount ids in memory.
		p.stream = p.queues[full[0]]
		p.total = counts[p.stream].Messages
		p.runs = []run{{0, p.total, chanSet(nil).with(full[0])}}
	default:
		if err := p.index(t, counts); err != nil {
			return nil, err
		}
	}
	for i := range p.channels {
		p.channels[i].first = p.total
		if r := slices.IndexFunc(p.runs, func(r run) bool { return r.set.has(i) }); r >= 0 {
			p.channels[i].first = p.runs[r].start
		}
	}
	return p, nil
}

// sets numbers the sets of channels that occur. It remembers the result of each join, because there are many messages
// but only few sets.
type sets struct {
	all   []chanSet
	byKey map[string]int32
	joins map[[2]int32]int32
}

func (s *sets) join(set int32, i int) int32 {
	key := [2]int32{set, int32(i)}
	if to, ok := s.joins[key]; ok {
		return to
	}
	joined := s.all[set].with(i)
	k := fmt.Sprint(joined)
	to, ok := s.byKey[k]
	if !ok {
		to = int32(len(s.all))
		s.all = append(s.all, joined)
		s.byKey[k] = to
	}
	s.joins[key] = to
	return to
}

func (p *plan) index(t *Topic, counts map[*Queue]Counts) error {
	s := &sets{all: []chanSet{nil}, byKey: map[string]int32{}, joins: map[[2]int32]int32{}}
	byID := map[[idBytes]byte]int32{}
	for i, q := range p.queues {
		if counts[q].Messages == 0 {
			continue
		}
		_, err := q.Read(func(m *Message) error {
			at, ok := byID[m.ID]
			if !ok {
				if len(p.entries) == MaxIndexedCount {
					return fmt.Errorf("%w: topic %s has more than %d; nothing of it was imported: let its consumers work the "+
						"backlog off at nsqd first", errTooMany, t.Name, MaxIndexedCount)
				}
				at = int32(len(p.entries))
				byID[m.ID] = at
				p.entries = append(p.entries, entry{
					timestamp: m.Timestamp, offset: m.offset, file: m.file, bytes: int32(len(m.Body)), queue: uint32(i),
				})
			}
			p.entries[at].set = s.join(p.entries[at].set, i)
			return nil
		})
		if err != nil {
			return err
		}
	}
	// Messages that are still in the topic's own queue are published from there, to all channels.
	topic := len(p.channels)
	p.entries = slices.DeleteFunc(p.entries, func(e entry) bool { return s.all[e.set].has(topic) })
	p.sort(s)
	return nil
}

// sort orders the entries so that messages of few channels come first. Many channels that have none of a run are then
// not created yet when the run is published.
func (p *plan) sort(s *sets) {
	order := make([]int32, len(s.all))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(s.all[a].count(), s.all[b].count()), slices.Compare(s.all[a], s.all[b]))
	})
	rank := make([]int, len(order))
	for r, set := range order {
		rank[set] = r
	}
	slices.SortStableFunc(p.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(rank[a.set], rank[b.set]), cmp.Compare(a.timestamp, b.timestamp))
	})
	p.total = int64(len(p.entries))
	for i := range p.entries {
		set := p.entries[i].set
		if i == 0 || set != p.entries[i-1].set {
			p.runs = append(p.runs, run{start: int64(i), set: s.all[set]})
		}
		p.runs[len(p.runs)-1].end = int64(i) + 1
	}
}

// has reports whether channel number c has message i. c is -1 for a channel that nsqd does not know.
func (p *plan) has(c int, i int64) bool {
	r := sort.Search(len(p.runs), func(r int) bool { return p.runs[r].end > i })
	return c >= 0 && r < len(p.runs) && p.runs[r].set.has(c)
}

// lastForeign returns the index of the last message that channel number c does not have, or -1 if it has them all.
func (p *plan) lastForeign(c int) int64 {
	for _, r := range slices.Backward(p.runs) {
		if c < 0 || !r.set.has(c) {
			return r.end - 1
		}
	}
	return -1
}

// each calls fn for each message, starting at index from. The body is valid only until fn returns.
func (p *plan) each(from int64, fn func(i int64, body []byte) error) error {
	if p.stream != nil {
		return eachFrom(p.stream, from, fn)
	}
	files := openFiles{queues: p.queues, open: map[fileKey]*os.File{}}
	defer files.close()
	var body []byte
	for i := from; i < p.total; i++ {
		e := &p.entries[i]
		f, err := files.get(e)
		if err != nil {
			return err
		}
		body = slices.Grow(body[:0], int(e.bytes))[:e.bytes]
		if _, err := f.ReadAt(body, e.offset); err != nil {
			return fmt.Errorf("migrate: %s cannot be read again at byte %d: %w",
				p.queues[e.queue].fileName(e.file), e.offset, noEOF(err))
		}
		if err := fn(i, body); err != nil {
			return err
		}
	}
	return nil
}

// eachFrom calls fn for each message of a queue, starting at number from.
func eachFrom(q *Queue, from int64, fn func(i int64, body []byte) error) error {
	i := int64(0)
	_, err := q.Read(func(m *Message) error {
		i++
		if i <= from {
			return nil
		}
		return fn(i-1, m.Body)
	})
	return err
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// maxOpenFiles bounds the number of files that are open at once, because the plan does not read messages in the order
// in which the files have them.
const maxOpenFiles = 64

type fileKey struct {
	queue uint32
	file  int64
}

type openFiles struct {
	queues []*Queue
	open   map[fileKey]*os.File
}

func (o *openFiles) get(e *entry) (*os.File, error) {
	key := fileKey{e.queue, e.file}
	if f, ok := o.open[key]; ok {
		return f, nil
	}
	if len(o.open) >= maxOpenFiles {
		o.close()
	}
	q := o.queues[e.queue]
	f, err := q.root.Open(q.fileName(e.file))
	if err != nil {
		return nil, fmt.Errorf("migrate: %s cannot be read again: %w", q.fileName(e.file), err)
	}
	o.open[key] = f
	return f, nil
}

func (o *openFiles) close() {
	for key, f := range o.open {
		_ = f.Close() // only read from
		delete(o.open, key)
	}
}
