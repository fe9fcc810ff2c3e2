package stats

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"

	"penstock/internal/clip"
	"penstock/internal/node/health"
)

// Text returns /stats in nsqd's Text layout.
func (r *Reply) Text(now time.Time) string {
	var w strings.Builder
	start := time.Unix(r.StartTime, 0)
	fmt.Fprintf(&w, "nsqd v%s (built w/%s)\n", r.Version, runtime.Version())
	fmt.Fprintf(&w, "start_time %v\nuptime %s\n", start.Format(time.RFC3339), now.Sub(start))
	fmt.Fprintf(&w, "\nHealth: %s\n", r.Health)
	if m := r.Memory; m != nil {
		fmt.Fprintf(&w, "\nMemory:\n")
		for _, v := range []struct {
			name  string
			value uint64
		}{
			{"heap_objects", m.HeapObjects},
			{"heap_idle_bytes", m.HeapIdleBytes},
			{"heap_in_use_bytes", m.HeapInUseBytes},
			{"heap_released_bytes", m.HeapReleasedBytes},
			{"gc_pause_usec_100", m.GCPauseUsec100},
			{"gc_pause_usec_99", m.GCPauseUsec99},
			{"gc_pause_usec_95", m.GCPauseUsec95},
			{"next_gc_bytes", m.NextGCBytes},
			{"gc_total_runs", uint64(m.GCTotalRuns)},
		} {
			fmt.Fprintf(&w, "   %-25s\t%d\n", v.name, v.value)
		}
	}
	if len(r.Topics) == 0 {
		w.WriteString("\nTopics: None\n")
	} else {
		w.WriteString("\nTopics:")
	}
	for i := range r.Topics {
		r.Topics[i].text(&w, now)
	}
	if len(r.Producers) == 0 {
		w.WriteString("\nProducers: None\n")
	} else {
		w.WriteString("\nProducers:\n")
	}
	for i := range r.Producers {
		fmt.Fprintf(&w, "   %s\n", r.Producers[i].text(now))
	}
	return w.String()
}

func (t *Topic) text(w *strings.Builder, now time.Time) {
	fmt.Fprintf(w, "\n%s[%-15s] depth: %-5d be-depth: %-5d msgs: %-8d e2e%%: %s\n",
		pausedMark(t.Paused), t.Name, t.Depth, t.BackendDepth, t.MessageCount, t.Latency.text())
	for i := range t.Channels {
		c := &t.Channels[i]
		fmt.Fprintf(w, "   %s[%-25s] depth: %-5d be-depth: %-5d "+
			"inflt: %-4d def: %-4d re-q: %-5d timeout: %-5d msgs: %-8d e2e%%: %s\n",
			pausedMark(c.Paused), c.Name, c.Depth, c.BackendDepth,
			c.InFlightCount, c.DeferredCount, c.RequeueCount, c.TimeoutCount, c.MessageCount, c.Latency.text())
		if c.AsideCount > 0 {
			fmt.Fprintf(w, "        [dead letters aside: %d] %s\n", c.AsideCount, c.AsideWhy)
		}
		if c.FullPartitions > 0 {
			fmt.Fprintf(w, "        [full partitions: %d] too many messages wait between finished ones\n", c.FullPartitions)
		}
		if c.DroppedCount > 0 {
			fmt.Fprintf(w, "        [dropped: %d] removed by retention or a quota before they were finished\n", c.DroppedCount)
		}
		if c.Starved {
			fmt.Fprintln(w, "        [starved] messages wait, and no consumer asks for any")
		}
		if c.Skipping {
			s := health.Channel{Count: int(c.SkippedCount), Why: c.SkippingSince, Before: c.SkippedBefore}
			fmt.Fprintf(w, "        [skipping: %d] what is published is discarded, %s\n", c.SkippedCount, s.Skipped())
		}
		for j := range c.Clients {
			fmt.Fprintf(w, "        %s\n", c.Clients[j].text(now))
		}
	}
}

func pausedMark(paused bool) string {
	if paused {
		return "*P "
	}
	return "   "
}

func (c *Client) text(now time.Time) string {
	_, port, _ := net.SplitHostPort(c.RemoteAddress)
	id := fmt.Sprintf("%s:%s %s", clip.Plain(c.Hostname), port, clip.Plain(c.UserAgent))
	connected := now.Sub(c.Started).Truncate(time.Second)
	if len(c.PubCounts) > 0 && c.State == StateInit {
		total := uint64(0)
		var topics []string
		for _, p := range c.PubCounts {
			total += p.Count
			topics = append(topics, fmt.Sprintf("%s=%d", p.Topic, p.Count))
		}
		return fmt.Sprintf("[%s %-21s] msgs: %-8d topics: %s connected: %s",
			c.Version, id, total, strings.Join(topics, ","), connected)
	}
	return fmt.Sprintf("[%s %-21s] state: %d inflt: %-4d rdy: %-4d fin: %-8d re-q: %-8d msgs: %-8d connected: %s",
		c.Version, id, c.State, c.InFlightCount, c.ReadyCount, c.FinishCount, c.RequeueCount, c.MessageCount, connected)
}
