package world

import (
	"slices"

	"penstock/internal/meta"
	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// checkCounts: when all is quiet, what a leader counts of each channel is what a full read of its logs finds that the
// channel has not confirmed: neither what retention has removed, nor less than there is.
func (w *World) checkCounts() {
	for _, n := range w.nodes {
		left := map[string]map[string]int64{} // by topic and channel
		for _, v := range n.inside.Partitions() {
			if !v.Serves || w.Violation != "" {
				continue
			}
			has, ok := w.idsOf(n, v.ID)
			if !ok {
				return // bits have rotted: some of it cannot be read
			}
			if left[v.Topic] == nil {
				left[v.Topic] = map[string]int64{}
			}
			for _, c := range v.Channels {
				left[v.Topic][c.Name] += unconfirmed(has, &c, v.Visible)
			}
		}
		for _, t := range n.e.Stats("", "") {
			for _, c := range t.Channels {
				want, served := left[t.Name][c.Name]
				if got := c.Depth + int64(c.InFlightCount+c.DeferredCount); served && got != want {
					w.fail("%s counts %d messages that wait, %d in flight and %d that are delayed in channel %s of %s; its "+
						"logs have %d that are not confirmed", n.name, c.Depth, c.InFlightCount, c.DeferredCount, c.Name, t.Name, want)
				}
			}
		}
	}
}

// idsOf returns the messages that a node's copy of a partition has, as published or as carried; false: it cannot be
// read as a whole.
func (w *World) idsOf(n *host, id meta.PartitionID) (has []msgID, ok bool) {
	err := n.readLog(id, 0, func(_ segment.Offset, h *segment.Header, body []byte) bool {
		if !h.Control() {
			for i := range h.Count {
				has = append(has, h.FirstID+msgID(i))
			}
			return true
		}
		_ = fold.DecodeControls(body, func(ct *fold.Control) error {
			for i := range ct.Carried {
				has = append(has, ct.Carried[i].ID)
			}
			return nil
		})
		return true
	})
	slices.Sort(has)
	return slices.Compact(has), err == nil
}

// unconfirmed counts the messages below visible that a channel has not confirmed.
func unconfirmed(has []msgID, c *partition.ChannelView, visible msgID) (n int64) {
	for _, id := range has {
		done := id < c.Confirmed || slices.ContainsFunc(c.Ranges, func(r fold.IDRange) bool {
			return r.From <= id && id < r.To
		})
		if !done && id >= c.Start && id < visible {
			n++
		}
	}
	return n
}
