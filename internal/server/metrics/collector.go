package metrics

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/node"
	"penstock/internal/server/handshakes"
	"penstock/internal/server/native"
	"penstock/internal/server/web"
)

// Options say what a Collector reads.
type Options struct {
	Engine    *node.Engine
	Version   string             // of this program
	Started   time.Time          // when the server began to serve
	MaxSeries int                // most series of topics and channels together, see limiter; 0: DefaultMaxSeries
	Server    func() ServerMeter // counters of the server; nil: none
	Wait      time.Duration      // how long a scrape waits for the numbers of topics and channels; 0: DefaultWait
}

// Defaults of Options.
const (
	DefaultMaxSeries = 10_000
	DefaultWait      = 2 * time.Second
)

// Collector is a prometheus.Collector that reads a node. Any goroutine may call its methods.
type Collector struct {
	o      Options
	rounds rounds
	limit  limiter
}

// New returns a collector. It starts no goroutine before the first scrape.
func New(o Options) *Collector {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	c := &Collector{o: o}
	c.Limit(o.MaxSeries)
	c.rounds.read = c.readObjects
	return c
}

// Limit changes Options.MaxSeries.
func (c *Collector) Limit(series int) { c.limit.limit(cmp.Or(series, DefaultMaxSeries)) }

func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range families {
		out <- f.desc
	}
}

func (c *Collector) Collect(out chan<- prometheus.Metric) {
	w, s := writer{out}, c.read()
	if o := c.rounds.latest(c.o.Wait); o != nil { // nil: the first round has not ended yet
		s.age = time.Since(o.at)
		if o.freeErr == nil {
			s.freeBytes = o.freeBytes
		}
		if o.countsInodes {
			s.freeInodes = o.freeInodes
		}
		s.truncated = c.limit.collect(w, o)
	}
	for i, t := range tables {
		if t.section != ofCluster || s.cluster != nil {
			w.table(ofTables[i], t.rows(s))
		}
	}
}

// read reads what can be read without waiting.
func (c *Collector) read() *snapshot {
	e := c.o.Engine
	s := &snapshot{
		now: time.Now(), started: c.o.Started, version: c.o.Version, info: e.Info(), counters: e.Counters(),
		verdict: e.Verdict(), commit: e.CommitStats(), storage: e.Storage(), certificates: e.Certificates(),
		cluster: e.ClusterMeter(), tokens: e.Catalog().TokenUses(),
	}
	s.tokens = s.tokens[:min(len(s.tokens), maxTokens)]
	if c.o.Server != nil {
		s.server = c.o.Server()
	}
	return s
}

// ServerMeter has the counters of the server.
type ServerMeter struct {
	Refused      map[string]uint64 // publishes, by reason
	Connections  map[string]int    // by kind
	AuthFailures uint64
	AuthHeld     int // clients that go on with a grant that has expired, because the auth servers are silent

	CredentialsStale  bool // the files of credentials on the disk cannot be used
	Handshakes        handshakes.Counts
	AuthSilentSeconds float64 // since when these are; 0: they answer

	HTTPPanics uint64 // requests over HTTP that a fault of this program has ended
	// AuditNotWritten counts the entries of the audit that the disk did not take.
	AuditNotWritten uint64
	Turns           web.TurnCounts // of statistics, metrics and traces
	// LogLinesLeftOut counts the lines that strangers caused and of which the log has only the number.
	LogLinesLeftOut uint64
	// KnownConnections are those of NSQ's and native clients whose token has a share of them.
	KnownConnections int64

	LargeInputBytes int64 // of large commands and bodies that are under way

	NSQ    NSQ
	Native native.Meter // the zero value: native clients are not served

	Requests  map[Request]uint64
	Publishes map[string]*Durations // of a sample of the publishes that were answered OK, by protocol
}

// NSQ has the numbers of the server of NSQ's clients.
type NSQ struct {
	Connections      int
	AuthFailures     uint64
	Strangers        int               // connections of clients that have to send AUTH and have not
	StrangersRefused map[string]uint64 // by reason
	LargeInputWaits  uint64            // large commands that had to wait
	ModeratedReads   uint64            // for which the commands of a moment were gathered
	PolledPublishers int64             // connections that are read by one goroutine
}

// Request is a kind of HTTP request. Route is the pattern of a route, never the path of a client.
type Request struct {
	Route string
	Code  int
}
