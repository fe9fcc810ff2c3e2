package history

import (
	"sort"
	"time"
)

// producerOrder holds, for what one producer sent over one connection and had acknowledged: the order of sending is the
// order in each partition. It also holds that a batch lies together.
func (c *checker) producerOrder() {
	type stream struct {
		connKey
		topic     string
		partition uint32
	}
	last := map[stream]*value{}
	for _, p := range c.pubs { // in order of invocation
		if !p.acked() {
			continue
		}
		var before *value
		for i := range p.count() {
			v := c.values[key{p.Client, p.Seq + i}]
			if !v.known {
				break
			}
			if before != nil && v.id != before.id+1 {
				c.r.add(TornBatch, "%s has id %016x and %s of the same batch %016x", before, before.id, v, v.id)
			}
			s := stream{connKey{p.Client, p.Conn}, p.Topic, Partition(v.id)}
			if l := last[s]; l != nil && v.id < l.id {
				c.r.add(Reordered, "%s was sent before %s on one connection; stored as %016x and %016x", l, v, l.id, v.id)
			}
			last[s], before = v, v
		}
	}
}

// realTimeOrder holds across all clients: what was sent after another message's acknowledgement lies behind it. A
// leader of the past that acknowledges without its replicas is found here even when its messages survive.
func (c *checker) realTimeOrder() {
	type place struct {
		topic     string
		partition uint32
	}
	places := map[place][]*value{}
	for _, v := range c.all {
		if v.known {
			k := place{v.pub.Topic, Partition(v.id)}
			places[k] = append(places[k], v)
		}
	}
	for _, sent := range places {
		acked := make([]*value, 0, len(sent))
		for _, v := range sent {
			if v.pub.acked() {
				acked = append(acked, v)
			}
		}
		sort.Slice(sent, func(i, j int) bool { return sent[i].pub.At < sent[j].pub.At })
		sort.Slice(acked, func(i, j int) bool { return acked[i].pub.done.At < acked[j].pub.done.At })
		var newest *value // the largest id acknowledged so far
		for _, v := range sent {
			for len(acked) > 0 && acked[0].pub.done.At < v.pub.At {
				if newest == nil || acked[0].id > newest.id {
					newest = acked[0]
				}
				acked = acked[1:]
			}
			if newest != nil && v.id < newest.id {
				c.r.add(Stale, "%s was sent at %v as %016x, after %s was acknowledged at %v as %016x",
					v, v.pub.At, v.id, newest, newest.pub.done.At, newest.id)
			}
		}
	}
}

// fault is one thing that the nemesis did.
type fault struct {
	Event
	heal time.Duration // -1: never
}

// next is when the fault after i begins, or the end of the run.
func (c *checker) next(i int) time.Duration {
	if i+1 < len(c.faults) {
		return c.faults[i+1].At
	}
	return c.end
}

// liveness holds that every producer that tries after a Heal is answered OK in time, unless another fault comes or the
// run ends before.
func (c *checker) liveness() {
	for i, f := range c.faults {
		if f.heal < 0 {
			continue
		}
		first := map[string]time.Duration{}
		served := map[string]bool{}
		from := sort.Search(len(c.pubs), func(k int) bool { return c.pubs[k].At >= f.heal })
		for _, p := range c.pubs[from:] {
			if p.At > c.next(i) {
				break
			}
			if _, ok := first[p.Client]; !ok {
				first[p.Client] = p.At
			}
			if p.acked() && p.done.At <= first[p.Client]+c.LivenessLimit {
				served[p.Client] = true
			}
		}
		for client, at := range first {
			if !served[client] && at+c.LivenessLimit <= c.next(i) {
				c.r.add(Stuck, "%s tries since %v, and nothing was acknowledged in %v after %s was healed at %v",
					client, at, c.LivenessLimit, f.Detail, f.heal)
			}
		}
	}
}
