package history

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"text/tabwriter"
	"time"
)

// Window is what one fault cost.
type Window struct {
	Kind string
	Node string
	At   time.Duration
	Heal time.Duration // -1: never
	// from the fault to the first acknowledgement of a publish that was sent after it; -1: none before the next fault
	First time.Duration
	// the longest time without any acknowledgement, from the fault to the next one or the end of publishing
	Gap time.Duration
	// the same for the one producer that waited longest; who has a publish under way to every partition waits for the
	// slowest
	Stall time.Duration
}

func (c *checker) windows() []Window {
	acks := make([]*publish, 0, len(c.pubs))
	for _, p := range c.pubs {
		if p.acked() {
			acks = append(acks, p)
		}
	}
	sort.SliceStable(acks, func(i, j int) bool { return acks[i].done.At < acks[j].done.At })
	var all []Window
	for i, f := range c.faults {
		w := Window{Kind: f.Detail, Node: f.Node, At: f.At, Heal: f.heal, First: -1}
		last, until := f.At, c.next(i)
		each := map[string]time.Duration{}
		from := sort.Search(len(acks), func(k int) bool { return acks[k].done.At >= f.At })
		for _, p := range acks[from:] {
			at := p.done.At
			if at > until {
				if i+1 < len(c.faults) {
					at = until
				}
				w.Gap = max(w.Gap, at-last)
				break
			}
			w.Gap, last = max(w.Gap, at-last), at
			before, ok := each[p.Client]
			if !ok {
				before = f.At
			}
			w.Stall, each[p.Client] = max(w.Stall, at-before), at
			if w.First < 0 && p.At >= f.At {
				w.First = at - f.At
			}
		}
		all = append(all, w)
	}
	return all
}

// Percentile of a set of times, by the nearest rank; 0 of none.
func Percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	rank := int(p/100*float64(len(all)) + 0.999999)
	return all[min(max(rank, 1), len(all))-1]
}

// PrintWindows writes a table of what the faults of each kind cost.
func PrintWindows(w io.Writer, windows []Window) error {
	kinds := map[string][]Window{}
	for _, x := range windows {
		kinds[x.Kind] = append(kinds[x.Kind], x)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t,
		"fault\tcount\tno answer\tnext ack p50\tp99\tmax\tlongest gap p50\tp99\tmax\tone producer p50\tp99\tmax")
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		var first, gaps, stalls []time.Duration
		silent := 0
		for _, x := range kinds[kind] {
			gaps, stalls = append(gaps, x.Gap), append(stalls, x.Stall)
			if x.First < 0 {
				silent++
				continue
			}
			first = append(first, x.First)
		}
		fmt.Fprintf(t, "%s\t%d\t%d", kind, len(kinds[kind]), silent)
		for _, all := range [][]time.Duration{first, gaps, stalls} {
			for _, p := range []float64{50, 99, 100} {
				fmt.Fprintf(t, "\t%s", Percentile(all, p).Round(time.Millisecond))
			}
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// Print writes the judgement for people.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "%d values published: %d acknowledged, %d failed, %d unknown of which %d were stored\n",
		r.Published, r.Acked, r.Failed, r.Unknown, r.Surfaced)
	fmt.Fprintf(w, "%d deliveries, %d of them again, %d after a FIN that a fault made forgotten\n",
		r.Deliveries, r.Repeated, r.Forgotten)
	for _, class := range slices.Sorted(maps.Keys(r.Classes)) {
		fmt.Fprintf(w, "  %6d not acknowledged: %s\n", r.Classes[class], class)
	}
	if len(r.Windows) > 0 {
		if err := PrintWindows(w, r.Windows); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.Counts)) {
		fmt.Fprintf(w, "VIOLATION %s: %d times\n", k, r.Counts[k])
	}
	for _, v := range r.Violations {
		if _, err := fmt.Fprintf(w, "  %s: %s\n", v.Kind, v.Text); err != nil {
			return err
		}
	}
	return nil
}
