package load

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"penstock/client"
)

// Report is the result of one run. In JSON, times are in nanoseconds.
type Report struct {
	Mode     string `json:"mode"`     // pub, sub, e2e or read
	Protocol string `json:"protocol"` // nsq or native
	Server   Server `json:"server"`
	Address  string `json:"address"`
	Topic    string `json:"topic"`
	Channel  string `json:"channel,omitempty"`

	Connections int           `json:"connections"`
	InFlight    int           `json:"in_flight,omitempty"`
	Batch       int           `json:"batch,omitempty"`
	Ready       int           `json:"rdy,omitempty"`
	SizeBytes   int           `json:"size_bytes"`
	Headers     int           `json:"headers,omitempty"` // of each message that the run published
	Rate        float64       `json:"rate,omitempty"`    // as requested; absent: closed loop
	WarmUp      time.Duration `json:"warm_up_ns"`

	// Of native producers; Batches and what follows it with the warm-up.
	Compression string        `json:"compression,omitempty"`
	Linger      time.Duration `json:"linger_ns,omitempty"`
	BatchBytes  int           `json:"batch_bytes,omitempty"` // limit of a batch before compression
	Batches     int64         `json:"batches,omitempty"`
	PerBatch    float64       `json:"messages_per_batch,omitempty"`
	WireBytes   float64       `json:"wire_bytes_per_message,omitempty"` // of batches, compressed

	Elapsed           time.Duration `json:"elapsed_ns"` // of the measured part
	Messages          int64         `json:"messages"`   // in the measured part
	MessagesPerSecond float64       `json:"messages_per_second"`
	BytesPerSecond    float64       `json:"bytes_per_second"` // bodies
	Errors            int64         `json:"errors"`
	FirstError        string        `json:"first_error,omitempty"`
	Redelivered       int64         `json:"redelivered,omitempty"`
	Foreign           int64         `json:"foreign,omitempty"` // messages of other runs, which were only finished
	ClientCores       float64       `json:"client_cores"`      // the generator's CPU time divided by elapsed time
	Cores             int           `json:"cores"`
	Latencies         []Latency     `json:"latencies,omitempty"`
}

// Server is the node's description of itself at /info. A field that it does not tell is "unknown".
type Server struct {
	Version     string `json:"version"`
	IO          string `json:"io"`
	FileSystem  string `json:"file_system"`
	Device      string `json:"device"`
	DeviceCache string `json:"device_cache"`
	Kernel      string `json:"kernel"`
	Durability  string `json:"durability"`
}

// Latency is one distribution.
type Latency struct {
	Name  string        `json:"name"`
	Count int64         `json:"count"`
	Min   time.Duration `json:"min_ns"`
	Mean  time.Duration `json:"mean_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p99_9_ns"`
	P9999 time.Duration `json:"p99_99_ns"`
	P5N   time.Duration `json:"p99_999_ns"`
	Max   time.Duration `json:"max_ns"`
}

func newReport(cfg *Config, mode string) *Report {
	r := &Report{
		Mode: mode, Protocol: "nsq", Server: describeServer(cfg.Info), Address: cfg.address(), Topic: cfg.Topic,
		Connections: cfg.Connections, SizeBytes: cfg.SizeBytes, Headers: cfg.Headers, Rate: cfg.Rate, WarmUp: cfg.WarmUp,
		Cores: runtime.NumCPU(),
	}
	if r.publishes() {
		r.InFlight, r.Batch = cfg.InFlight, cfg.Batch
	} else if !cfg.Fill {
		r.Headers = 0
	}
	if mode == "sub" || mode == "e2e" {
		r.Channel, r.Ready = cfg.Channel, cfg.Ready
	}
	if n := cfg.Native; n != nil {
		r.Protocol, r.Batch = "native", 0
		if r.publishes() {
			r.Linger, r.BatchBytes = n.Producer.Linger, n.Producer.MaxBatchBytes
			r.Compression = compressions[n.Producer.Compression]
		}
	}
	return r
}

// finish computes the results from the meters. The measured part ends with its last message.
func (r *Report) finish(run *run, meters []*meter) {
	last := int64(0)
	for _, m := range meters {
		r.Messages += m.measured
		last = max(last, m.last)
	}
	r.Errors, _ = run.faults.state()
	if _, first := run.faults.state(); first != nil {
		r.FirstError = first.Error()
	}
	if last > run.clock.warmUp {
		r.Elapsed = time.Duration(last - run.clock.warmUp)
		r.MessagesPerSecond = float64(r.Messages) / r.Elapsed.Seconds()
		r.BytesPerSecond = r.MessagesPerSecond * float64(r.SizeBytes)
	}
	if total := time.Since(run.clock.base); total > 0 {
		r.ClientCores = float64(cpuTime()-run.cpu) / float64(total)
	}
}

// compressions are the names of the ways to compress; none has none.
var compressions = map[client.Compression]string{client.CompressS2: "s2", client.CompressZstd: "zstd"}

// publishes says whether the run measured publishing.
func (r *Report) publishes() bool { return r.Mode == "pub" || r.Mode == "e2e" }

// batches reports the batches that native producers made.
func (r *Report) batches(producers []*producer) {
	bytes, messages := int64(0), int64(0)
	for _, p := range producers {
		for i := range p.told {
			t := &p.told[i]
			r.Batches += t.batches
			bytes += t.wireBytes
			messages += t.meter.done.Load()
		}
	}
	if r.Batches > 0 && messages > 0 {
		r.PerBatch = float64(messages) / float64(r.Batches)
		r.WireBytes = float64(bytes) / float64(messages)
	}
}

func (r *Report) latency(name string, meters []*meter) {
	all := hdrhistogram.New(1, maxLatency, precisionFew)
	for _, m := range meters {
		all.Merge(m.hist)
	}
	r.histogram(name, all)
}

func (r *Report) histogram(name string, h *hdrhistogram.Histogram) {
	if h.TotalCount() == 0 {
		return
	}
	at := func(p float64) time.Duration { return time.Duration(h.ValueAtPercentile(p)) * unit }
	r.Latencies = append(r.Latencies, Latency{
		Name: name, Count: h.TotalCount(), Min: time.Duration(h.Min()) * unit, Mean: time.Duration(h.Mean() * float64(unit)),
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), P9999: at(99.99), P5N: at(99.999),
		Max: time.Duration(h.Max()) * unit,
	})
}

// WriteJSON writes the report as one indented object.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the report as text for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "run\t%s\n", r.describe())
	s := r.Server
	fmt.Fprintf(t, "node\t%s at %s\n", s.Version, r.Address)
	fmt.Fprintf(t, "storage\tI/O %s, file system %s, device %s, device cache %s, kernel %s\n",
		s.IO, s.FileSystem, s.Device, s.DeviceCache, s.Kernel)
	fmt.Fprintf(t, "durability\t%s\n", s.Durability)
	fmt.Fprintf(t, "messages\t%s in %.2f s after %s of warm-up\n",
		grouped(float64(r.Messages)), r.Elapsed.Seconds(), r.WarmUp)
	fmt.Fprintf(t, "throughput\t%s msg/s, %.1f MB/s\n", grouped(r.MessagesPerSecond), r.BytesPerSecond/1e6)
	if r.Batches > 0 {
		fmt.Fprintf(t, "batches\t%.1f messages in each, %.1f B on the wire per message\n", r.PerBatch, r.WireBytes)
	}
	fmt.Fprintf(t, "errors\t%d%s\n", r.Errors, prefixed(": ", r.FirstError))
	if r.Redelivered > 0 || r.Foreign > 0 {
		fmt.Fprintf(t, "also seen\t%d redelivered, %d of other runs\n", r.Redelivered, r.Foreign)
	}
	fmt.Fprintf(t, "client\t%.2f of %d cores\n", r.ClientCores, r.Cores)
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.Latencies) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "latency\tmin\tmean\tp50\tp90\tp99\tp99.9\tp99.99\tp99.999\tmax\n")
	for _, l := range r.Latencies {
		fmt.Fprintf(t, "%s", l.Name)
		for _, d := range []time.Duration{l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.P9999, l.P5N, l.Max} {
			fmt.Fprintf(t, "\t%s", shortDuration(d))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func (r *Report) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, topic %s", r.Mode, r.Topic)
	if r.Channel != "" {
		fmt.Fprintf(&b, ", channel %s, RDY %d", r.Channel, r.Ready)
	}
	fmt.Fprintf(&b, ", %d connection%s", r.Connections, plural(r.Connections))
	if r.publishes() {
		if r.Rate > 0 {
			fmt.Fprintf(&b, ", %s, open loop at %s msg/s", r.command(), grouped(r.Rate))
		} else {
			fmt.Fprintf(&b, " × %d in flight, %s, closed loop", r.InFlight, r.command())
		}
	} else if r.Headers > 0 {
		fmt.Fprintf(&b, ", filled with messages of %d B + %d header%s", r.SizeBytes, r.Headers, plural(r.Headers))
	}
	return b.String()
}

// command describes the command and the messages that were published, such as PUB_EXT, 100 B + 3 headers (79 B of
// JSON).
func (r *Report) command() string {
	verb, suffix, batch, more := "PUB", "", "", ""
	if r.Protocol == "native" {
		return r.produced()
	}
	if r.Batch > 1 {
		verb, batch = "MPUB", " ×"+strconv.Itoa(r.Batch)
	}
	if r.Headers > 0 {
		suffix, more = "_EXT", fmt.Sprintf(" + %d header%s (%d B of JSON)",
			r.Headers, plural(r.Headers), len(headersJSON(r.Headers)))
	}
	return fmt.Sprintf("%s%s%s, %d B%s", verb, suffix, batch, r.SizeBytes, more)
}

// produced describes the messages of native producers.
func (r *Report) produced() string {
	text := fmt.Sprintf("native, %d B", r.SizeBytes)
	if r.Headers > 0 {
		text += fmt.Sprintf(" + %d header%s", r.Headers, plural(r.Headers))
	}
	if r.Compression != "" {
		text += ", " + r.Compression
	}
	if r.Linger > 0 {
		text += ", linger " + r.Linger.String()
	}
	return text
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// grouped formats a count with commas between the thousands.
func grouped(v float64) string {
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// shortDuration formats a duration with three significant digits and one unit.
func shortDuration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.0fµs", float64(d)/1e3)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2fms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%.0fms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.2fs", d.Seconds())
}

const unknown = "unknown"

// describeServer reads /info. For a stock nsqd, which has no storage object there, the fields about storage remain
// unknown.
func describeServer(ask func() []byte) Server {
	s := Server{unknown, unknown, unknown, unknown, unknown, unknown, unknown}
	if ask == nil {
		return s
	}
	var info struct {
		Version string         `json:"version"`
		Storage map[string]any `json:"storage"`
	}
	if json.Unmarshal(ask(), &info) != nil {
		return s
	}
	s.Version = info.Version
	if info.Storage == nil {
		return s
	}
	s.Durability = "each OK after a write and a flush to stable storage"
	for key, to := range map[string]*string{
		"ioengine": &s.IO, "filesystem": &s.FileSystem, "device": &s.Device, "devicecache": &s.DeviceCache,
		"kernel": &s.Kernel,
	} {
		for k, v := range info.Storage {
			if text, ok := v.(string); ok && text != "" && strings.ReplaceAll(strings.ToLower(k), "_", "") == key {
				*to = text
			}
		}
	}
	return s
}
