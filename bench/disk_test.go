//go:build disk

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"penstock/internal/load"
	"penstock/tests/cluster/harness"
)

// Variables of the environment: TEST_ROUNDS and TEST_SECONDS, the length of a load, are numbers; TEST_ENGINES is a list
// of engines, separated by commas, that are measured in turn: an old one and a new one. By default the engine of this
// tree is measured. TEST_LOADS is a regular expression of titles, "200 MB/s: 1 KiB × 1" for example.
const (
	diskRounds  = 3
	diskSeconds = 4
)

const (
	loopBytes = 3 << 30
	// keptBytes are what is replayed. turnedBytes of another topic come behind them, more than the commit log has: so
	// the kept ones are in segments, and files of the commit log are used again, as on a node that runs for long.
	keptBytes   = 256 << 20
	turnedBytes = 384 << 20
)

// diskServe keep the disk from filling up, and change nothing else.
var diskServe = []string{"--retention-bytes", fmt.Sprint(turnedBytes), "--retention-interval", "200ms"}

// diskVariants are nodes with a disk each, which reads and writes at most limit bytes per second; 0: it has no limit.
var diskVariants = []struct {
	name  string
	nodes int
	limit int64
}{
	{"whole disk", 1, 0},
	{"100 MB/s", 1, 100e6},
	{"200 MB/s", 1, 200e6},
	{"1000 MB/s", 1, 1e9},
	{"3 nodes, 100 MB/s", 3, 100e6},
}

// diskLoad publishes as fast as it can.
type diskLoad struct {
	name                           string
	producers, inFlight, sizeBytes int
	batchBytes                     int // native: batches leave when they have so much; 0: as soon as they can
	perCommand                     int // messages of an MPUB; 0: the native protocol
}

var diskLoads = []diskLoad{
	{"1 KiB × 1", 1, 4096, 1 << 10, 0, 0},
	{"16 KiB × 4", 4, 256, 16 << 10, 0, 0},
	{"1 KiB × 1, batches of 256 KiB", 1, 4096, 1 << 10, 256 << 10, 0},
	{"1 KiB × 1, batches of 1 MiB", 1, 4096, 1 << 10, 1 << 20, 0},
	{"MPUB of 100 × 100 B × 8", 8, 8, 100, 0, 100},
}

func (l *diskLoad) config(n *harness.Node) load.Config {
	at := served{nsq: n.NSQ, native: n.Native}
	cfg := at.nativeConfig("t")
	if l.perCommand > 0 {
		cfg = at.config("t")
		cfg.Batch = l.perCommand
	} else if l.batchBytes > 0 {
		cfg.Native.Producer.MaxBatchBytes, cfg.Native.Producer.Linger = l.batchBytes, time.Second
	}
	cfg.Connections, cfg.InFlight, cfg.SizeBytes, cfg.WarmUp = l.producers, l.inFlight, l.sizeBytes, 0
	return cfg
}

// diskColumns are what is measured. The share of the limit is that of the bodies; on a whole disk, of what durable
// writes of 1 MiB reach, one after the other. "device" is what the device wrote, or read, with all that belongs to it.
// The server's processors are those of all nodes, the others' those of the kernel and of whatever else runs here.
var diskColumns = []string{
	"msg/s", "MB/s", "of limit", "device/limit", "device/body", "p99 ms", "server s/GB", "client cores", "idle cores",
	"other cores", "KiB/batch",
}

type diskKey struct{ title, engine string }

// diskTest is a run: its disks, of which a single node has the first, and its results.
type diskTest struct {
	dir     string
	disks   []*limitedDisk
	group   *limitedGroup
	engines []string
	chosen  *regexp.Regexp
	length  time.Duration // of a load

	commits, raw []float64 // of the first disk, in µs and bytes per second: a value per round
	titles       []string
	seen         map[diskKey]map[string][]float64 // by column, a value per round
	clients      map[string]int                   // producers or readers, by title
}

// What a node ingests and reads on a disk with a limit, and three nodes on three of them. Each round takes all limits,
// each limit all engines in turn, each with an empty directory.
func TestDisks(t *testing.T) {
	if err := harness.VolumeMissing(); err != nil {
		t.Skip(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	chosen, err := regexp.Compile(os.Getenv("TEST_LOADS"))
	if err != nil {
		t.Fatal(err)
	}
	m := &diskTest{
		dir: t.TempDir(), group: newLimitedGroup(t), engines: strings.Split(os.Getenv("TEST_ENGINES"), ","), chosen: chosen,
		length: time.Duration(numberOf(t, "TEST_SECONDS", diskSeconds)) * time.Second,
		seen:   map[diskKey]map[string][]float64{}, clients: map[string]int{},
	}
	for i := range 3 {
		m.disks = append(m.disks, newLimitedDisk(ctx, t, m.dir, fmt.Sprintf("n%d", i+1), loopBytes))
	}
	if err := headerIn(m.disks[0].path); err != nil {
		t.Fatal(err)
	}
	defer m.print(t)
	for round := range numberOf(t, "TEST_ROUNDS", diskRounds) {
		if !t.Run("device", m.device) {
			return
		}
		for v := range diskVariants {
			for i := range m.engines {
				engine := m.engines[(round+i)%len(m.engines)]
				name := diskVariants[v].name + "/" + filepath.Base(engine)
				if !t.Run(name, func(t *testing.T) { m.variant(ctx, t, v, engine) }) {
					return
				}
			}
		}
	}
}

// device measures the first disk alone.
func (m *diskTest) device(t *testing.T) {
	r := newRawLoopIn(t, m.disks[0].path)
	large := r.writeTimes(t, 200, 1<<20)
	m.commits = append(m.commits, micros(r.commitTime(t, 500)))
	m.raw = append(m.raw, 1<<20/large[len(large)/2].Seconds())
}

// variant measures an engine on some disks: on one, replay, for the first time and from the page cache, and all loads.
func (m *diskTest) variant(ctx context.Context, t *testing.T, number int, engine string) {
	v := diskVariants[number]
	title := func(name string) string { return v.name + ": " + name }
	var loads []diskLoad
	for i, l := range diskLoads {
		if m.chosen.MatchString(title(l.name)) && (v.nodes == 1 || i == 0) {
			loads = append(loads, l)
		}
	}
	replays := v.nodes == 1 && m.chosen.MatchString(title("replay"))
	if len(loads) == 0 && !replays {
		return
	}
	c, disks, pids := m.start(ctx, t, v.nodes, engine), m.disks[:v.nodes], []int(nil)
	for _, n := range c.Nodes {
		pids = append(pids, n.PID())
	}
	m.group.take(t, pids...)
	for _, d := range disks {
		m.group.limit(t, d.number, v.limit, v.limit)
	}
	type runner = func(context.Context, load.Config) (*load.Report, error)
	measure := func(name string, cfg load.Config, limit int64, run runner) {
		before := useOf(t, disks, pids)
		r, err := run(ctx, cfg)
		if err == nil && r.Messages == 0 {
			err = errors.New("no message")
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m.note(diskKey{title(name), engine}, cfg.Connections,
			diskSample(before, useOf(t, disks, pids), r, limit, len(disks)))
	}
	if replays {
		cfg := diskLoads[0].config(c.Nodes[0])
		cfg.Topic, cfg.Messages, cfg.Duration = "kept", keptBytes>>10, 0
		measure("replay, first", cfg, v.limit, load.ReadPast)
		measure("replay, again", cfg, 0, load.ReadPast) // from memory
	}
	for _, l := range loads {
		cfg := l.config(c.Nodes[0])
		cfg.Duration = time.Second // not measured
		if _, err := load.Publish(ctx, cfg); err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		cfg.Duration = m.length
		measure(l.name, cfg, cmp.Or(v.limit, int64(last(m.raw))), load.Publish)
	}
}

// note keeps the values of a row.
func (m *diskTest) note(key diskKey, clients int, values map[string]float64) {
	if m.clients[key.title] == 0 {
		m.clients[key.title] = clients
		m.titles = append(m.titles, key.title)
	}
	if m.seen[key] == nil {
		m.seen[key] = map[string][]float64{}
	}
	for column, value := range values {
		m.seen[key][column] = append(m.seen[key][column], value)
	}
}

// start runs nodes on empty disks without a limit, and fills them.
func (m *diskTest) start(ctx context.Context, t *testing.T, nodes int, engine string) *harness.Cluster {
	t.Helper()
	start := harness.Single
	if nodes > 1 {
		start = harness.Dev
	}
	starting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := start(starting, harness.Options{Dir: m.dir, Nodes: nodes, Binary: engine, Serve: diskServe})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.Close()
		for _, n := range c.Nodes {
			err = errors.Join(err, n.Wipe())
		}
		if err != nil {
			t.Error(err)
		}
	})
	for _, fill := range []struct {
		topic string
		bytes int64
	}{{"kept", keptBytes}, {"t", turnedBytes}} {
		if nodes > 1 {
			if err := errors.Join(c.CreateTopic(starting, fill.topic), c.Settled(starting)); err != nil {
				t.Fatal(err)
			}
		}
		cfg := diskLoads[0].config(c.Nodes[0])
		cfg.Topic, cfg.Duration, cfg.Messages = fill.topic, 0, fill.bytes>>10
		if _, err := load.Publish(ctx, cfg); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// diskUse is what disks and processors have done so far.
type diskUse struct {
	at            time.Time
	written, read int64 // bytes, of all disks
	server, idle  time.Duration
}

func useOf(t *testing.T, disks []*limitedDisk, pids []int) diskUse {
	t.Helper()
	u := diskUse{at: time.Now()}
	number := func(path string, field int) int64 {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseInt(strings.Fields(string(data))[field], 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return n
	}
	for _, d := range disks {
		stat := "/sys/dev/block/" + d.number + "/stat"
		u.read += 512 * number(stat, 2)
		u.written += 512 * number(stat, 6)
	}
	idle := number("/proc/stat", 4) + number("/proc/stat", 5) // the second: waiting for a disk
	u.idle = time.Duration(idle) * 10 * time.Millisecond
	for _, pid := range pids {
		u.server += cpuTimeOf(t, pid)
	}
	return u
}

// diskSample is a value for each column that the run has. A limit of 0 is none.
func diskSample(from, to diskUse, r *load.Report, limit int64, disks int) map[string]float64 {
	took, bodies := to.at.Sub(from.at).Seconds(), float64(r.Messages)*float64(r.SizeBytes)
	moved := float64(to.written - from.written)
	if r.Mode == "read" {
		moved = float64(to.read - from.read)
	}
	moved /= float64(disks)
	s := map[string]float64{
		"msg/s": r.MessagesPerSecond, "MB/s": r.BytesPerSecond / 1e6, "device/body": moved / bodies,
		"server s/GB": (to.server - from.server).Seconds() / bodies * 1e9, "client cores": r.ClientCores,
		"idle cores": (to.idle - from.idle).Seconds() / took,
	}
	s["other cores"] = float64(runtime.NumCPU()) - s["idle cores"] - r.ClientCores - (to.server-from.server).Seconds()/took
	if limit > 0 {
		s["of limit"], s["device/limit"] = r.BytesPerSecond/float64(limit), moved/took/float64(limit)
	}
	if len(r.Latencies) > 0 {
		s["p99 ms"] = r.Latencies[0].P99.Seconds() * 1e3
	}
	if r.PerBatch > 0 {
		s["KiB/batch"] = r.PerBatch * r.WireBytes / 1024
	}
	return s
}

// atLimit says which processor bounds a run, if one does. A client cannot use many more processors than it has
// producers, or readers.
func atLimit(client, idle, others float64, clients int) string {
	switch {
	case idle < 0.1:
		return fmt.Sprintf("all processors are busy, %.1f with other work", others)
	case client > 0.9*float64(clients):
		return "the client is at its limit"
	}
	return ""
}

// print writes the medians, and the median ratio of each further engine to the first one.
func (m *diskTest) print(t *testing.T) {
	if len(m.commits) == 0 || len(m.titles) == 0 {
		return
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d processors; loop device: a durable 4 KiB write takes %.0f µs, 1 MiB %.0f MB/s; median of %d\n",
		runtime.NumCPU(), median(m.commits), median(m.raw)/1e6, len(m.commits))
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "load\tengine\t%s\tratio\t\n", strings.Join(diskColumns, "\t"))
	for _, title := range m.titles {
		for _, engine := range m.engines {
			m.printRow(w, diskKey{title, engine})
		}
	}
	w.Flush()
	t.Log(text.String())
}

func (m *diskTest) printRow(w *tabwriter.Writer, key diskKey) {
	seen, first := m.seen[key], m.seen[diskKey{key.title, m.engines[0]}]["MB/s"]
	if len(seen) == 0 {
		return
	}
	fmt.Fprintf(w, "%s\t%s\t", key.title, filepath.Base(key.engine))
	for _, column := range diskColumns {
		switch values := seen[column]; {
		case len(values) == 0:
		case median(values) < 20:
			fmt.Fprintf(w, "%.2f", median(values))
		default:
			fmt.Fprintf(w, "%.0f", median(values))
		}
		fmt.Fprint(w, "\t")
	}
	var ratios []float64
	for i := range min(len(first), len(seen["MB/s"])) {
		ratios = append(ratios, seen["MB/s"][i]/first[i])
	}
	if len(ratios) > 0 { // otherwise the test has ended before
		fmt.Fprintf(w, "%.2f", median(ratios))
	}
	fmt.Fprintf(w, "\t  %s\n", atLimit(median(seen["client cores"]), median(seen["idle cores"]),
		median(seen["other cores"]), m.clients[key.title]))
}

func TestDiskSample(t *testing.T) {
	const sec = time.Second
	from := diskUse{at: time.Now(), written: 1e6, read: 5e6, server: sec, idle: sec}
	to := diskUse{at: from.at.Add(2 * sec), written: 601e6, read: 105e6, server: 2 * sec, idle: 4 * sec}
	r := &load.Report{Mode: "pub", Messages: 100_000, SizeBytes: 1000, BytesPerSecond: 50e6}
	got := diskSample(from, to, r, 100e6, 3)
	for column, want := range map[string]float64{
		"device/body": 2, "device/limit": 1, "of limit": 0.5, "server s/GB": 10, "idle cores": 1.5,
	} {
		if got[column] != want {
			t.Errorf("%s is %v, want %v", column, got[column], want)
		}
	}
	r.Mode = "read"
	if got := diskSample(from, to, r, 100e6, 3)["device/body"]; got != 1.0/3 {
		t.Errorf("%v bytes are read per byte of body", got)
	}
	if _, has := diskSample(from, to, &load.Report{Messages: 1, SizeBytes: 1}, 0, 1)["of limit"]; has {
		t.Error("there is a share of no limit")
	}
}

func TestAtLimit(t *testing.T) {
	for _, tc := range []struct {
		client, idle, others float64
		clients              int
		want                 string
	}{
		{0.95, 0.5, 0.1, 1, "the client is at its limit"},
		{0.95, 0.5, 0.1, 4, ""},
		{0.95, 0.05, 0.44, 1, "all processors are busy, 0.4 with other work"},
	} {
		if got := atLimit(tc.client, tc.idle, tc.others, tc.clients); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}
