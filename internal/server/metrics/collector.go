package metrics

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"penstock/clog"
	"penstock/internal/descriptors"
	"penstock/internal/node"
	"penstock/internal/node/health"
	"penstock/internal/server/handshakes"
	"penstock/internal/server/native"
	"penstock/internal/server/web"
	unproven "penstock/internal/strangers"
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
	if o.MaxSeries == 0 {
		o.MaxSeries = DefaultMaxSeries
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	c := &Collector{o: o, limit: limiter{most: o.MaxSeries}}
	c.rounds.read = c.readObjects
	return c
}

func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range families {
		out <- f.desc
	}
}

func (c *Collector) Collect(out chan<- prometheus.Metric) {
	w := writer{out}
	c.collectNode(w)
	if o := c.rounds.latest(c.o.Wait); o != nil { // nil: the first round has not ended yet
		w.set(age, time.Since(o.at).Seconds())
		if o.freeErr == nil {
			w.set(diskFree, float64(o.freeBytes))
		}
		if o.countsInodes {
			w.set(diskInodes, float64(o.freeInodes))
		}
		w.set(truncated, oneIf(c.limit.collect(w, o)))
	}
}

// writer passes metrics on.
type writer struct{ out chan<- prometheus.Metric }

// set passes a metric on. values are those of the family's labels.
func (w writer) set(f *family, v float64, values ...string) {
	w.out <- &sample{family: f, value: v, values: values}
}

// sample is a prometheus.Metric with a value that was read. A const metric of the library is the same, with four times
// as many allocations, and a node has thousands of them in each scrape.
type sample struct {
	family *family
	value  float64
	values []string
}

func (s *sample) Desc() *prometheus.Desc { return s.family.desc }

func (s *sample) Write(out *dto.Metric) error {
	pairs := make([]dto.LabelPair, len(s.values))
	out.Label = make([]*dto.LabelPair, len(pairs))
	for i, at := range s.family.sorted {
		pairs[i].Name, pairs[i].Value = &s.family.labels[at], &s.values[at]
		out.Label[i] = &pairs[i]
	}
	if s.family.kind == counter {
		out.Counter = &dto.Counter{Value: &s.value}
	} else {
		out.Gauge = &dto.Gauge{Value: &s.value}
	}
	return nil
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectNode writes what can be read without waiting.
func (c *Collector) collectNode(w writer) {
	info := c.o.Engine.Info()
	w.set(buildInfo, 1, c.o.Version, runtime.Version())
	w.set(storageInfo, 1, info.IOEngine, info.FileSystem, info.DeviceCache, strconv.FormatBool(info.Direct))
	w.set(startTime, float64(c.o.Started.UnixNano())/1e9)
	w.set(unscheduled, float64(c.o.Engine.Counters().UnscheduledNanos.Load())/1e9)
	verdict := c.o.Engine.Verdict()
	for _, check := range verdict.Checks {
		w.set(ready, oneIf(check.OK), check.Name)
	}
	collectCommit(w, c.o.Engine.CommitStats())
	collectCertificates(w, c.o.Engine.Certificates(), time.Now())
	if c.o.Server != nil {
		collectServer(w, c.o.Server())
	}
	if m := c.o.Engine.ClusterMeter(); m != nil {
		collectCluster(w, m, c.o.Engine.Counters())
	}
	collectStorage(w, c.o.Engine.Storage(), len(info.CorruptionsAtRecover))
	uses := c.o.Engine.TokenUses()
	for _, u := range uses[:min(len(uses), maxTokens)] {
		w.set(tokenTopics, float64(u.Topics), u.Token)
		w.set(tokenPartitions, float64(u.Partitions), u.Token)
		w.set(tokenState, float64(u.StateBytes), u.Token)
		w.set(tokenStored, float64(u.StoredBytes), u.Token)
		w.set(tokenOfLimit, u.OfLimit, u.Token)
	}
}

// maxTokens bounds the tokens that have series.
const maxTokens = 20

func collectCertificates(w writer, all []health.Certificate, now time.Time) {
	for i := range all {
		c := &all[i]
		w.set(certificateExpiry, c.Until.Sub(now).Seconds(), c.Setting)
		w.set(certificateValid, oneIf(c.At(now) < health.CertificateNotYet), c.Setting)
	}
}

func collectCommit(w writer, s clog.Stats) {
	w.set(commitGroups, float64(s.Groups))
	w.set(commitRecords, float64(s.Records))
	w.set(commitBytes, float64(s.Bytes))
	w.set(commitZeroed, float64(s.ZeroedBytes))
	w.set(slowCommits, float64(s.Slow))
	w.set(commitStalls, float64(s.StallsBuffer), "buffers")
	w.set(commitStalls, float64(s.StallsSpare), "files")
	w.set(commitStalls, float64(s.StallsFull), "room")
	w.set(commitLive, float64(s.LiveBytes))
	w.durations(commitFlush, s.Flush[:], s.FlushNanos)
}

func collectStorage(w writer, s node.StorageStats, foundAtStart int) {
	w.set(commitRoom, float64(s.CommitRoomBytes))
	w.set(inboxBytes, float64(s.WaitingBytes))
	w.set(inflatingBytes, float64(s.InflatingBytes))
	w.set(inflationRefused, float64(s.InflationRefused))
	w.set(stateBytes, float64(s.StateBytes))
	w.set(stateLimit, float64(s.StateLimitBytes))
	w.set(listedPartitions, float64(s.ListedPartitions))
	w.set(partitionLimit, float64(s.PartitionLimit))
	w.set(listedTopics, float64(s.ListedTopics))
	w.set(topicLimit, float64(s.TopicLimit))
	w.set(logDropped, float64(s.LogLinesDropped))
	w.set(heapLimit, float64(s.HeapLimitBytes))
	w.set(buffersFree, float64(s.FreeBuffers))
	w.set(buffers, float64(s.Buffers))
	w.set(segmentWritten, float64(s.SegmentBytes))
	w.set(trashEntries, float64(s.TrashEntries))
	w.set(openSegments, float64(s.OpenSegments))
	w.set(mappedSegments, float64(s.MappedSegments))
	w.set(retentionRemoved, float64(s.TrimmedBytes))
	w.set(copies, float64(s.DamagedCopies), "damaged")
	w.set(copies, float64(s.Contested), "contested")
	w.set(copies, float64(s.Short), "short")
	w.set(copies, float64(s.Shortened), "shortened")
	w.set(olderDirectory, float64(s.OlderDirectory))
	w.set(unknownTopics, float64(s.UnknownTopics))
	w.set(asideCuts, float64(s.AsideCuts))
	w.set(asideMessages, float64(s.AsideMessages))
	w.set(asideBytes, float64(s.AsideBytes))
	w.set(diskFull, oneIf(s.DiskFull))
	w.set(diskTransient, oneIf(s.Transient))
	for _, state := range []string{"good", "slow", "hung", "failed"} {
		w.set(diskState, oneIf(s.DiskState == state), state)
	}
	w.set(clockAhead, float64(s.ClockAheadMs)/1000)
	w.set(storageFailed, oneIf(s.Failed))
	w.set(logForgotten, oneIf(s.Forgotten))
	w.set(groundLost, oneIf(s.GroundLost))
	w.set(readOnlyTopics, float64(s.ReadOnlyTopics))
	w.set(corruptions, float64(s.DamagedCopies), "copies")
	w.set(corruptions, float64(foundAtStart), "recovery")
	w.set(corruptions, float64(s.ScrubDamaged), "segments")
	w.set(corruptions, float64(s.ScrubLogDamaged), "commit_log")
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

func collectServer(w writer, m ServerMeter) {
	for reason, n := range m.Refused {
		w.set(refused, float64(n), reason)
	}
	for kind, n := range m.Connections {
		w.set(connections, float64(n), kind)
	}
	for protocol, d := range m.Publishes {
		var counts [durationBuckets]uint64
		for i := range counts {
			counts[i] = d.buckets[i].Load()
		}
		w.durations(publishDuration, counts[:], d.nanos.Load(), protocol)
	}
	w.set(authFailures, float64(m.AuthFailures))
	w.set(credentialsStale, oneIf(m.CredentialsStale))
	w.set(handshakesWaiting, float64(m.Handshakes.Waiting))
	w.set(handshakesComputed, float64(m.Handshakes.Computed))
	w.set(handshakesRefused, float64(m.Handshakes.Refused))
	w.set(authSilent, m.AuthSilentSeconds)
	w.set(authHeld, float64(m.AuthHeld))
	w.set(httpPanics, float64(m.HTTPPanics))
	w.set(logLeftOut, float64(m.LogLinesLeftOut), "clients")
	w.set(unreadAnswers, float64(m.Turns.UnreadBytes))
	w.set(answersRefused, float64(m.Turns.Late), "late")
	w.set(answersRefused, float64(m.Turns.Unread), "unread")
	w.set(auditNotWritten, float64(m.AuditNotWritten))
	w.set(descriptorsRefused, float64(descriptors.Refused()))
	w.set(knownConns, float64(m.KnownConnections))
	w.set(unprovenClosed, float64(unproven.Closed()))
	w.set(strangers, float64(m.NSQ.Strangers))
	for reason, n := range m.NSQ.StrangersRefused {
		w.set(strangersRefused, float64(n), reason)
	}
	w.set(largeInput, float64(m.LargeInputBytes))
	w.set(largeInputWaits, float64(m.NSQ.LargeInputWaits))
	w.set(moderatedReads, float64(m.NSQ.ModeratedReads))
	w.set(polledPublishers, float64(m.NSQ.PolledPublishers))
	for r, n := range m.Requests {
		w.set(httpRequests, float64(n), r.Route, strconv.Itoa(r.Code))
	}
	collectNative(w, &m.Native)
}

func collectNative(w writer, m *native.Meter) {
	for r, n := range m.Requests {
		w.set(nativeRequests, float64(n), r.Request, r.Status)
	}
	w.set(nativeBytes, float64(m.ReceivedBytes), "received")
	w.set(nativeBytes, float64(m.SentBytes), "sent")
	w.set(nativeInFlight, float64(m.InFlight))
	w.set(nativeOutput, float64(m.Output))
	w.set(nativeReaders, float64(m.Readers))
	w.set(nativeSubscriptions, float64(m.Subscriptions))
	w.set(nativeStrangers, float64(m.Strangers))
	for reason, n := range m.TurnedAway {
		w.set(nativeTurnedAway, float64(n), reason)
	}
}

func collectCluster(w writer, m *node.ClusterMeter, c *node.Counters) {
	w.set(storeUp, oneIf(m.Leased))
	w.set(storeFull, oneIf(m.Store.Full != ""))
	w.set(storeApart, float64(len(m.Store.Apart)))
	w.set(storeFault, oneIf(m.Store.Fault != ""))
	w.set(leaseLeft, m.LeaseLeft.Seconds())
	w.set(controller, oneIf(m.Controller))
	w.set(partitions, float64(m.InSync), "in_sync")
	w.set(partitions, float64(m.UnderReplicated), "under_replicated")
	w.set(partitions, float64(m.BelowMinISR), "below_min_isr")
	w.set(partitions, float64(m.Following), "following")
	w.set(partitions, float64(m.Leaderless), "leaderless")
	w.set(partitionsLed, float64(m.Led()))
	w.set(isrChanges, float64(c.ISRChanges.Load()))
	w.set(leaderChanges, float64(c.LeaderChanges.Load()))
	w.set(unconnected, float64(m.Unreached))
	w.set(nodeConnsRefused, float64(m.Unproven), "unproven")
	w.set(nodeConnsRefused, float64(m.Crowded), "crowded")
	w.set(nodeConnsRefused, float64(m.Incomplete), "incomplete")
	w.set(logLeftOut, float64(m.LinesLeftOut), "nodes")
	w.set(framesRefused, float64(c.FramesWithoutCopy.Load()), "no_copy")
	for _, p := range m.Peers {
		w.set(lagSeconds, p.Lag.Seconds(), p.Name)
		w.set(lagBytes, float64(p.LagBytes), p.Name)
		w.set(peerUp, oneIf(p.Up), p.Name)
		if p.ClockAhead != nil {
			w.set(clockDiffers, p.ClockAhead.Seconds(), p.Name)
		}
	}
}
