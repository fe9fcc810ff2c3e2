package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"penstock/internal/descriptors"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/listen"
	"penstock/internal/server/lookup"
	"penstock/internal/server/metrics"
	"penstock/internal/server/publish"
	"penstock/internal/server/statsd"
	"penstock/internal/server/web"
	"penstock/internal/sparing"
)

// Off as Options.HTTPAddress, HTTPSAddress, LookupAddress, LookupTCPAddress or NativeAddress disables that listener.
const Off = listen.Off

// Ports are those of the services that clients find by lookups; 0: the one that is listened on.
type Ports struct{ TCP, HTTP, Native int }

// Options configure a Server. The zero value of a field stands for its default. Limits that the engine has, too
// (message size, timeouts), should be given the same values there.
type Options struct {
	TCPAddress   string // default 127.0.0.1:4150
	HTTPAddress  string // Off: not served; default 127.0.0.1:4151
	HTTPSAddress string // the same API over TLS, which needs TLS.CertFile; default Off
	// LookupMayBeBusy makes OpenFront go on without the lookup service if another process listens at one of its
	// addresses: they are defaults, which a stock nsqlookupd has, too.
	LookupMayBeBusy bool
	LookupAddress   string // nsqlookupd's HTTP API; Off: not served; default 127.0.0.1:4161
	// LookupTCPAddress is for stock nsqds; default 127.0.0.1:4160 if LookupAddress is its default and Auth is not set,
	// else Off. With Auth, no registration adds a producer to a topic of ours.
	LookupTCPAddress string
	NativeAddress    string // for native clients; default 127.0.0.1:4250 if TCPAddress is its default, else Off
	BroadcastAddress string // the host to which clients should connect; default Hostname
	// Announced are the ports that clients are told, where others are mapped to those that are listened on.
	Announced Ports
	Hostname  string // default os.Hostname
	Version   string // semver; NSQ's tools expect 1.3.0 or above; default 1.3.0+engine

	// LookupdTCPAddresses are the stock nsqlookupds, each HOST:PORT, at which this node registers the topics that it
	// leads. PUT /config/nsqlookupd_tcp_addresses changes them.
	LookupdTCPAddresses []string

	// AllowedHosts are names, without a port, by which browsers may address the HTTP listeners, besides IP addresses,
	// localhost, Hostname and BroadcastAddress. A request whose Host header has another name is refused, which stops web
	// pages that use DNS rebinding. "*" allows all names.
	AllowedHosts []string

	// OpenPages: where clients must prove who they are, /stats, /metrics, /info and the lists of lookups are for everybody
	// all the same, as nsqadmin needs it, which shows no token.
	OpenPages bool

	// HTTPIdleTime is how long an HTTP connection stays open on which nothing is asked; default 11 min. For one beyond a
	// quarter of MaxConnections, at most 4096, the one that is idle longest is closed.
	HTTPIdleTime time.Duration

	// DataPath is the data directory, which the engine has locked: the server keeps its audit there. Empty: all that it
	// remembers is in memory.
	DataPath string

	// BackupPath is the directory below which POST /backup may write; empty: anywhere on the machine.
	BackupPath string

	MaxAuditEntries int   // changes and refusals kept in memory for GET /audit; default 1000
	MaxAuditBytes   int64 // of those kept in DataPath; default 16 MiB

	InactiveProducerTimeout time.Duration // lookups leave out a registered nsqd that is silent for longer; default 5 m

	Statsd statsd.Options // pushes statistics as nsqd does

	// MaxMetricSeries bounds the series of topics and channels in /metrics, see package metrics; default 10,000.
	MaxMetricSeries int
	// Front already serves HTTPAddress; the Server takes it over. nil: the Server listens itself.
	Front *Front

	ClusterHandler http.Handler // serves /cluster/ on HTTPAddress; nil on a single node

	TLS  TLSOptions
	Auth auth.Options

	Logger   *slog.Logger
	LogLevel *slog.LevelVar // set by PUT /config/log_level; nil: setting the level has no effect

	MaxRdyCount          int // default 2500
	MaxMessageBytes      int // default 1 MiB
	MaxBodyBytes         int // of MPUB, IDENTIFY and HTTP /mpub; default 5 MiB
	MaxOutputBufferBytes int // the largest output_buffer_size that a client may ask for; default 64 KiB
	// MinOutputBufferTimeout and MaxOutputBufferTimeout bound what a client may ask for; it delays nothing. The defaults
	// are 25 ms and 30 s.
	MinOutputBufferTimeout time.Duration
	MaxOutputBufferTimeout time.Duration

	HeartbeatInterval    time.Duration // a client that is silent for two intervals is disconnected; default 30 s
	MaxHeartbeatInterval time.Duration // default 60 s
	MsgTimeout           time.Duration // default 60 s
	MaxMsgTimeout        time.Duration // default 15 m
	MaxReqTimeout        time.Duration // longer delays of a REQ are reduced to this; default 1 h
	MaxDefer             time.Duration // default 1 h

	MaxChannelConsumers int // only for the text of an error: the engine's Options.MaxConsumers

	MaxConnections       int           // a connection beyond it is closed at once; default 65536
	MaxConnInFlightBytes int           // bytes of its commands at the disk before a connection is not read; default 16 MiB
	MaxConnInFlightCount int           // likewise, the number of answers that it is owed; default 65536
	MaxConnOutputBytes   int           // unsent bytes of a connection, plus the frame that exceeds it; default 256 KiB
	MaxCommandTime       time.Duration // time from a command's first byte to its last; default 60 s

	// Of connections whose client has to send AUTH and has not; see stranger.go.
	MaxStrangers     int           // for one beyond it the oldest of the address that has the most is closed; default 256
	MaxStrangerBytes int           // of the bodies of all commands of one before AUTH; default 4 KiB
	StrangerTime     time.Duration // to send AUTH; default 10 s

	askForChannel time.Duration // for which a SUB waits to learn whether it creates its channel; default 1 s

	moderationPace time.Duration // 0: as in moderate.go; tests of loaded machines set it

	// MaxLargeInputBytes bounds the memory of all commands above 64 KiB that have not wholly arrived, and of bodies above
	// 16 KiB of HTTP requests. A token, or the address of clients without one, has a quarter of it, or what the largest
	// command takes. The default is 256 MiB, or what the largest command takes if that is more.
	MaxLargeInputBytes int64

	// MaxInFlightBytes bounds the total size of the bodies that are in flight to one consumer, whatever its RDY; 0: no
	// limit. The message that reaches the limit is still delivered.
	MaxInFlightBytes int64

	// WriteTimeout is how long a client may read none of its output, or half as long again. If the client's heartbeat
	// interval is shorter, that applies instead. The default is 30 s.
	WriteTimeout time.Duration

	DisableSnappy     bool          // do not offer snappy to clients
	DisableDeflate    bool          // do not offer deflate
	MaxDeflateLevel   int           // 1 to 9, of which higher ones cost more and gain little; default 6
	MaxInflationRatio int           // by how much compressed input may expand, beyond the first 4 MiB; default 256
	HandshakeTimeout  time.Duration // for a whole TLS handshake on an NSQ connection; default 5 s
	MaxHandshakes     int           // at once; further ones wait within their HandshakeTimeout; default 1024

	largeInputGrace time.Duration // tests only: how long a large command may come at any rate; 10 s

	lookupdPing time.Duration // tests only: lookup.Options.PingInterval

	// Directory is the source for lookups; nil: the engine.
	Directory lookup.Directory

	// Reload looks at the files of credentials for POST /reload, and says what came of each; nil: there are none. Any
	// goroutine may call it.
	Reload func() []CredentialFile

	// ConfigValues answers GET /config/<name> for options other than the two that can be set; nil: no others.
	ConfigValues func(name string) (value any, ok bool)
}

const (
	// minHeartbeat, minOutputBuffer and minMsgTimeout are nsqd's lower bounds in IDENTIFY.
	minHeartbeat    = time.Second
	minOutputBuffer = 64
	minMsgTimeout   = time.Second

	defaultOutputBuffer  = 16 << 10
	defaultOutputTimeout = 250 * time.Millisecond
	defaultDeflateLevel  = 6
	mostDeflateLevel     = 9

	// maxClientTextBytes bounds each of client_id, hostname and user_agent, which are kept with the connection.
	maxClientTextBytes = 1024

	// lingerTime is how long a connection that is ending is still read from: closing it with unread input would reset
	// it, and the client might never see the last frame.
	lingerTime = time.Second
)

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o *Options) setDefaults() error {
	orDefault(&o.TCPAddress, ownTCPAddress)
	o.setNativeDefault()
	orDefault(&o.HTTPAddress, "127.0.0.1:4151")
	o.setLookupDefaults()
	orDefault(&o.HTTPSAddress, Off)
	if o.Hostname == "" {
		h, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("nsq: cannot find the host's name (%w); set Options.Hostname", err)
		}
		o.Hostname = h
	}
	orDefault(&o.BroadcastAddress, o.Hostname)
	orDefault(&o.Version, "1.3.0+engine")
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.LogLevel == nil {
		o.LogLevel = new(slog.LevelVar)
	}
	orDefault(&o.MaxRdyCount, 2500)
	orDefault(&o.Statsd.Interval, time.Minute)
	orDefault(&o.Statsd.PacketBytes, 508)
	orDefault(&o.MaxMetricSeries, metrics.DefaultMaxSeries)
	orDefault(&o.MaxMessageBytes, 1<<20)
	orDefault(&o.MaxBodyBytes, 5<<20)
	orDefault(&o.MaxOutputBufferBytes, 64<<10)
	orDefault(&o.MinOutputBufferTimeout, 25*time.Millisecond)
	orDefault(&o.MaxOutputBufferTimeout, 30*time.Second)
	orDefault(&o.HeartbeatInterval, 30*time.Second)
	orDefault(&o.MaxHeartbeatInterval, 60*time.Second)
	orDefault(&o.MsgTimeout, 60*time.Second)
	orDefault(&o.MaxMsgTimeout, 15*time.Minute)
	orDefault(&o.MaxReqTimeout, time.Hour)
	orDefault(&o.askForChannel, time.Second)
	orDefault(&o.MaxDefer, time.Hour)
	orDefault(&o.MaxConnections, 65536)
	orDefault(&o.MaxConnInFlightBytes, 16<<20)
	orDefault(&o.MaxConnInFlightCount, 65536)
	orDefault(&o.MaxConnOutputBytes, 256<<10)
	orDefault(&o.MaxCommandTime, 60*time.Second)
	orDefault(&o.MaxStrangers, 256)
	orDefault(&o.MaxStrangerBytes, 4<<10)
	orDefault(&o.StrangerTime, 10*time.Second)
	orDefault(&o.MaxLargeInputBytes, max(256<<20, o.largestCommand()))
	orDefault(&o.largeInputGrace, 10*time.Second)
	orDefault(&o.WriteTimeout, 30*time.Second)
	orDefault(&o.HTTPIdleTime, web.DefaultIdleTime)
	orDefault(&o.moderationPace, moderationPace)
	orDefault(&o.MaxDeflateLevel, defaultDeflateLevel)
	orDefault(&o.MaxInflationRatio, 256)
	orDefault(&o.HandshakeTimeout, 5*time.Second)
	orDefault(&o.MaxHandshakes, 1024)
	if err := o.TLS.setDefaults(); err != nil {
		return err
	}
	if o.Auth.Logger == nil {
		o.Auth.Logger = o.Logger
	}
	if err := o.Auth.SetDefaults(); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if err := web.CheckAllowedHosts(o.AllowedHosts); err != nil {
		return err
	}
	return lookup.CheckNsqlookupds(o.LookupdTCPAddresses)
}

// setLookupDefaults sets the defaults of the lookup service. By default it enables registrations only while the lookup
// address is the default one, which is local, and clients need not prove who they are. Anybody who reaches the port can
// register, so an operator who opens lookups to other machines, or whose clients show their tokens to whom lookups
// name, has to decide about registrations as well.
func (o *Options) setLookupDefaults() {
	const own = "127.0.0.1:4161"
	orDefault(&o.LookupAddress, own)
	if o.LookupTCPAddress == "" {
		o.LookupTCPAddress = Off
		if o.LookupAddress == own && !o.Auth.Enabled() {
			o.LookupTCPAddress = "127.0.0.1:4160"
		}
	}
	orDefault(&o.InactiveProducerTimeout, 5*time.Minute)
}

const ownTCPAddress = "127.0.0.1:4150"

// setNativeDefault enables native clients by default only while the address for NSQ's clients is the default one, which
// is local: a version that brings the port must not take it on a machine whose operator has placed all others.
func (o *Options) setNativeDefault() {
	if o.NativeAddress == "" {
		o.NativeAddress = Off
		if o.TCPAddress == ownTCPAddress || o.TCPAddress == "" {
			o.NativeAddress = "127.0.0.1:4250"
		}
	}
}

// Check returns what Listen would say of the options and of the files that they name, such as that of the tokens. It
// opens no listener and asks nobody.
func (o Options) Check() error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	if _, err := o.certificates(sparing.New(o.Logger)); err != nil {
		return err
	}
	_, err := auth.Open(&o.Auth)
	return err
}

// gate returns the Gate of all HTTP listeners.
func (o *Options) gate(log *audit.Log) *web.Gate {
	g := web.NewGate(log, []string{o.Hostname, o.BroadcastAddress}, o.AllowedHosts)
	g.Limits = web.Limits{IdleTime: o.HTTPIdleTime, MaxIdle: maxIdle(o.MaxConnections, descriptors.Limit())}
	return g
}

// maxIdle returns how many connections of each HTTP listener may wait for a request: half of all connections at most.
// limit is how many descriptors the process may have; 0: it is not known.
func maxIdle(connections, limit int) int {
	return unproven(min(4096, connections/2), limit)
}

// unproven bounds the connections at one port that have proved nothing: an eighth of the descriptors that clients have.
// There are six such bounds: of three HTTP listeners, native handshakes, and NSQ's and native clients before AUTH.
func unproven(n, limit int) int {
	if limit > 0 {
		n = min(n, (limit-descriptors.Reserve(limit))/8)
	}
	return max(1, n)
}

func (o *Options) check() error {
	switch {
	case o.LookupTCPAddress != Off && o.LookupAddress == Off:
		return fmt.Errorf("nsq: nsqds that register on %s would be in no lookup: LookupAddress is off; "+
			"set it, or turn LookupTCPAddress off", o.LookupTCPAddress)
	case o.InactiveProducerTimeout < 0:
		return fmt.Errorf("nsq: InactiveProducerTimeout is %v; leave it 0 for the default", o.InactiveProducerTimeout)
	case o.MaxMessageBytes < 1 || o.MaxMessageBytes > 1<<30 ||
		o.MaxBodyBytes < o.MaxMessageBytes || o.MaxBodyBytes > 1<<30:
		return fmt.Errorf("nsq: MaxMessageBytes is %d and MaxBodyBytes %d; they must be 1 to 1 GiB, "+
			"and a body must hold a message", o.MaxMessageBytes, o.MaxBodyBytes)
	case o.HeartbeatInterval < minHeartbeat || o.HeartbeatInterval > o.MaxHeartbeatInterval:
		return fmt.Errorf("nsq: HeartbeatInterval is %v; it must be %v to MaxHeartbeatInterval (%v)",
			o.HeartbeatInterval, minHeartbeat, o.MaxHeartbeatInterval)
	case o.MaxDeflateLevel < 1 || o.MaxDeflateLevel > mostDeflateLevel:
		return fmt.Errorf("nsq: MaxDeflateLevel is %d; it must be 1 to %d", o.MaxDeflateLevel, mostDeflateLevel)
	case o.MaxInflationRatio < 1 || o.MaxHandshakes < 1 || o.HandshakeTimeout < 0:
		return fmt.Errorf("nsq: MaxInflationRatio, MaxHandshakes or HandshakeTimeout is negative; leave it 0 for the default")
	case o.HTTPSAddress != Off && !o.TLS.offered():
		return fmt.Errorf("nsq: HTTPS on %s needs a certificate; set both tls-cert and tls-key (TLS.CertFile and "+
			"TLS.KeyFile)", o.HTTPSAddress)
	case o.Statsd.Interval < 0 || o.Statsd.PacketBytes < 0:
		return fmt.Errorf("nsq: Statsd.Interval or Statsd.PacketBytes is negative; leave it 0 for the default")
	case o.MaxMetricSeries < 1:
		return fmt.Errorf("nsq: MaxMetricSeries is %d; leave it 0 for the default", o.MaxMetricSeries)
	case o.MaxAuditEntries < 0 || o.MaxAuditBytes < 0:
		return fmt.Errorf("nsq: MaxAuditEntries is %d and MaxAuditBytes %d; leave them 0 for the default", o.MaxAuditEntries,
			o.MaxAuditBytes)
	case o.MaxRdyCount < 1:
		return fmt.Errorf("nsq: MaxRdyCount is %d; clients would never get a message", o.MaxRdyCount)
	case o.MaxInFlightBytes < 0:
		return fmt.Errorf("nsq: MaxInFlightBytes is %d; no message would ever be delivered. Leave it 0 for no limit",
			o.MaxInFlightBytes)
	case o.MaxStrangers < 1 || o.MaxStrangerBytes < 1 || o.StrangerTime < 0:
		return fmt.Errorf("nsq: a limit for clients before AUTH is negative; leave it 0 for the default")
	case o.MaxLargeInputBytes < o.largestCommand():
		return fmt.Errorf("nsq: MaxLargeInputBytes is %d; the largest command alone takes %d", o.MaxLargeInputBytes,
			o.largestCommand())
	case o.MaxConnInFlightBytes < 1 || o.MaxConnInFlightCount < 1 || o.MaxConnections < 1 || o.MaxConnOutputBytes < 1:
		return fmt.Errorf("nsq: a connection limit is negative; leave it 0 for the default")
	}
	return nil
}

// largestCommand returns the memory that the largest command takes while it arrives.
func (o *Options) largestCommand() int64 {
	return int64(blockBytes(o.MaxBodyBytes + MaxLineBytes + publish.SizeBytes))
}

func (o *Options) limits() limits {
	return limits{
		maxMessageBytes: o.MaxMessageBytes,
		maxBodyBytes:    o.MaxBodyBytes,
		maxRdyCount:     o.MaxRdyCount,
		maxDeferMillis:  uint64(o.MaxDefer / time.Millisecond),
	}
}
