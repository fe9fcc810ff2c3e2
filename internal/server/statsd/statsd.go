package statsd

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"penstock/internal/node/names"
	"penstock/internal/server/stats"
)

// Options say where statistics are pushed to, as nsqd's settings of the same names.
type Options struct {
	Address          string        // HOST:PORT of a statsd, over UDP; "": nothing is pushed
	Prefix           string        // of all names; %s in it stands for this node's broadcast address and HTTP port
	Interval         time.Duration // between two pushes; default 60 s
	MemStats         bool          // push numbers of memory and garbage collection, too
	PacketBytes      int           // size of a packet; default 508. A line that is longer is a packet of its own
	ExcludeEphemeral bool          // leave out ephemeral topics and channels
}

// statsdDialTimeout bounds the look-up of the address.
const statsdDialTimeout = time.Second

// Pusher pushes a node's statistics, on the one goroutine that calls run. A restart forgets what was pushed: the first
// push then has the counts since the start.
type Pusher struct {
	o      Options
	stats  *stats.Collector
	host   string
	port   int
	log    *slog.Logger
	last   map[string]uint64 // the counters at the last push, by name
	failed bool              // the last push failed, which was logged
	next   chan Options      // holds new options that run has not seen yet
}

// New returns what pushes the statistics of a node with this broadcast address and HTTP port.
func New(o Options, stats *stats.Collector, host string, port int, log *slog.Logger) *Pusher {
	return &Pusher{o: o, stats: stats, host: host, port: port, log: log, next: make(chan Options, 1)}
}

// Change changes the options; the first push by them is an interval later. One goroutine at a time may call it.
func (d *Pusher) Change(o Options) {
	select {
	case <-d.next: // nobody has seen them
	default:
	}
	d.next <- o
}

// Run pushes at each interval, until quit is closed.
func (d *Pusher) Run(quit <-chan struct{}) {
	ticker := time.NewTicker(d.o.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-quit:
			return
		case o := <-d.next:
			if o != d.o {
				d.o, d.failed = o, false
				ticker.Reset(o.Interval)
			}
		case <-ticker.C:
			if d.o.Address != "" {
				d.note(d.push(quit))
			}
		}
	}
}

// note says once that pushing fails, and once that it works again.
func (d *Pusher) note(err error) {
	switch {
	case err != nil && !d.failed:
		d.log.Warn("statistics cannot be pushed to statsd; this is tried again at each interval",
			"address", d.o.Address, "interval", d.o.Interval, "error", err)
	case err == nil && d.failed:
		d.log.Info("statistics are pushed to statsd again", "address", d.o.Address)
	}
	d.failed = err != nil
}

// push sends the statistics of now. Like nsqd it spreads the packets over all of the interval but a second, because a
// burst of packets is more likely to be lost.
func (d *Pusher) push(quit <-chan struct{}) error {
	conn, err := net.DialTimeout("udp", d.o.Address, statsdDialTimeout)
	if err != nil {
		return err // the counts go into the next push
	}
	defer conn.Close()
	var mem *stats.Memory
	if d.o.MemStats {
		mem = stats.ReadMemory()
	}
	prefix := prefixOf(d.o.Prefix, d.host, d.port)
	lines, counters := encode(prefix, d.stats.Collect("", "", false), mem, d.last, d.o.ExcludeEphemeral)
	d.last = counters
	packets := pack(lines, d.o.PacketBytes)
	pause := max(0, d.o.Interval-time.Second) / time.Duration(max(1, len(packets)))
	for _, p := range packets {
		if _, err := conn.Write(p); err != nil {
			return err
		}
		select {
		case <-quit: // no more pauses: the rest goes out at once
		case <-time.After(pause):
		}
	}
	return nil
}

// prefixOf fills nsqd's notation of the prefix in.
func prefixOf(prefix, host string, port int) string {
	if prefix == "" {
		return ""
	}
	key := strings.NewReplacer(".", "_", ":", "_").Replace(net.JoinHostPort(host, fmt.Sprint(port)))
	return strings.TrimSuffix(strings.ReplaceAll(prefix, "%s", key), ".") + "."
}

// encode encodes the statistics with nsqd's names. Counters are sent as what was added since last, which has the
// counters of the previous push; counters are those of this one. A counter that went down began anew at 0.
func encode(
	prefix string, r *stats.Reply, mem *stats.Memory, last map[string]uint64, noEphemeral bool,
) (lines []string, counters map[string]uint64) {
	counters = make(map[string]uint64, len(last))
	count := func(name string, n uint64) {
		before := last[name]
		if n < before {
			before = 0
		}
		counters[name] = n
		lines = append(lines, fmt.Sprintf("%s%s:%d|c\n", prefix, name, n-before))
	}
	gauge := func(name string, n int64) { lines = append(lines, fmt.Sprintf("%s%s:%d|g\n", prefix, name, n)) }
	latencies := func(name string, l *stats.Latency) {
		for _, p := range l.Percentiles {
			if l.Measured {
				gauge(fmt.Sprintf("%s.e2e_processing_latency_%.0f", name, p.Quantile*100), int64(p.Value))
			}
		}
	}
	hidden := func(name string) bool { return noEphemeral && names.Ephemeral(name) }
	for i := range r.Topics {
		t := &r.Topics[i]
		if hidden(t.Name) {
			continue
		}
		name := "topic." + t.Name
		count(name+".message_count", t.MessageCount)
		count(name+".message_bytes", t.MessageBytes)
		gauge(name+".depth", t.Depth)
		gauge(name+".backend_depth", t.BackendDepth)
		latencies(name, &t.Latency)
		for j := range t.Channels {
			c := &t.Channels[j]
			if hidden(c.Name) {
				continue
			}
			name := name + ".channel." + c.Name
			count(name+".message_count", c.MessageCount)
			gauge(name+".depth", c.Depth)
			gauge(name+".backend_depth", c.BackendDepth)
			gauge(name+".in_flight_count", int64(c.InFlightCount))
			gauge(name+".deferred_count", int64(c.DeferredCount))
			count(name+".requeue_count", c.RequeueCount)
			count(name+".timeout_count", c.TimeoutCount)
			gauge(name+".clients", int64(c.ClientCount))
			latencies(name, &c.Latency)
		}
	}
	if mem != nil {
		gauge("mem.heap_objects", int64(mem.HeapObjects))
		gauge("mem.heap_idle_bytes", int64(mem.HeapIdleBytes))
		gauge("mem.heap_in_use_bytes", int64(mem.HeapInUseBytes))
		gauge("mem.heap_released_bytes", int64(mem.HeapReleasedBytes))
		gauge("mem.gc_pause_usec_100", int64(mem.GCPauseUsec100))
		gauge("mem.gc_pause_usec_99", int64(mem.GCPauseUsec99))
		gauge("mem.gc_pause_usec_95", int64(mem.GCPauseUsec95))
		gauge("mem.next_gc_bytes", int64(mem.NextGCBytes))
		count("mem.gc_runs", uint64(mem.GCTotalRuns))
	}
	return lines, counters
}

// pack joins lines to packets of at most most bytes each, unless a line alone is longer.
func pack(lines []string, most int) (packets [][]byte) {
	var p []byte
	for _, l := range lines {
		if len(p) > 0 && len(p)+len(l) > most {
			packets, p = append(packets, p), nil
		}
		p = append(p, l...)
	}
	if len(p) > 0 {
		packets = append(packets, p)
	}
	return packets
}
