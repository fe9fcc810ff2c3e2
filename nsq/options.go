package nsq

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"penstock/nsq/auth"
	"penstock/nsq/internal/listen"
	"penstock/nsq/lookup"
)

// Off as Options.HTTPAddress, HTTPSAddress, LookupAddress or LookupTCPAddress does not serve it.
const Off = listen.Off

// Options configure a Server. The zero value of every field is its default. Limits that the
// engine has too (message size, timeouts) should be given the same values there.
type Options struct {
	TCPAddress       string // 127.0.0.1:4150
	HTTPAddress      string // 127.0.0.1:4151; Off: none
	HTTPSAddress     string // Off; the same API over TLS, which needs TLS.CertFile
	LookupAddress    string // nsqlookupd's HTTP API: 127.0.0.1:4161; Off: none
	LookupTCPAddress string // where stock nsqds register: 127.0.0.1:4160 if LookupAddress is its default, else Off
	BroadcastAddress string // what clients should connect to; the host name
	Hostname         string // os.Hostname
	Version          string // semver, 1.3.0 or above for NSQ's tools: 1.3.0+engine

	// LookupdTCPAddresses are stock nsqlookupds, HOST:PORT, at which this node registers what it leads. PUT
	// /config/nsqlookupd_tcp_addresses changes them.
	LookupdTCPAddresses []string

	InactiveProducerTimeout time.Duration // an nsqd that registered and is silent for longer is in no lookup: 5 m

	ClusterHandler http.Handler // serves /cluster/ on HTTPAddress; nil: a single node

	TLS  TLSOptions
	Auth auth.Options

	Logger   *slog.Logger
	LogLevel *slog.LevelVar // set by PUT /config/log_level; nil: that level goes nowhere

	MaxRdyCount            int           // 2500
	MaxMessageBytes        int           // 1 MiB
	MaxBodyBytes           int           // MPUB, IDENTIFY and HTTP /mpub bodies: 5 MiB
	MaxOutputBufferBytes   int           // largest output_buffer_size a client may ask for: 64 KiB
	MaxOutputBufferTimeout time.Duration // 30 s; accepted from clients, delays nothing

	HeartbeatInterval    time.Duration // 30 s; a client that is silent for two of them is closed
	MaxHeartbeatInterval time.Duration // 60 s
	MsgTimeout           time.Duration // 60 s
	MaxMsgTimeout        time.Duration // 15 m
	MaxReqTimeout        time.Duration // 1 h; longer REQ delays are clamped
	MaxDefer             time.Duration // 1 h

	MaxChannelConsumers int // for the text of the error only: the engine's Options.MaxConsumers

	MaxConnections       int           // 65536; one more is closed at once
	MaxConnInFlightBytes int           // commands of one connection at the disk; with more it is not read from: 16 MiB
	MaxConnInFlightCount int           // likewise, answers: 65536
	MaxConnOutputBytes   int           // output that waits for one client to read: 256 KiB, and the frame that passes it
	MaxCommandTime       time.Duration // a command that began must be complete after this: 60 s

	// MaxInFlightBytes bounds the bodies that one consumer was sent and has not finished, however large its RDY: no
	// limit. The message that reaches the bound still goes out.
	MaxInFlightBytes int64

	// WriteTimeout is how long a client may take to read MaxConnOutputBytes, or its heartbeat interval if that is
	// shorter: 30 s.
	WriteTimeout time.Duration

	DisableSnappy     bool          // do not offer snappy to clients
	DisableDeflate    bool          // do not offer deflate
	MaxDeflateLevel   int           // 6, of 1 to 9: higher levels cost more and gain little
	MaxInflationRatio int           // compressed input may become so many times as large, beyond the first 4 MiB: 256
	HandshakeTimeout  time.Duration // for all of a TLS handshake on an NSQ connection: 5 s
	MaxHandshakes     int           // of them at once: 1024; further ones wait within their time

	lookupdPing time.Duration // tests only: lookup.Options.PingInterval

	// Directory answers lookups; nil: the engine does.
	Directory lookup.Directory

	// ConfigValues answers GET /config/<name> for options beyond the two that can be set.
	ConfigValues func(name string) (value any, ok bool)
}

const (
	// minHeartbeat, minOutputBuffer, minOutputTimeout and minMsgTimeout are nsqd's lower bounds in IDENTIFY.
	minHeartbeat     = time.Second
	minOutputBuffer  = 64
	minOutputTimeout = 25 * time.Millisecond
	minMsgTimeout    = time.Second

	defaultOutputBuffer  = 16 << 10
	defaultOutputTimeout = 250 * time.Millisecond
	defaultDeflateLevel  = 6
	mostDeflateLevel     = 9

	// maxClientTextBytes bounds each of client_id, hostname and user_agent: they are kept with the connection.
	maxClientTextBytes = 1024

	// lingerTime is how long a connection that ends with an error frame is still read from: closing with unread
	// input would reset it, and the client might never see the frame.
	lingerTime = time.Second
)

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o *Options) setDefaults() error {
	orDefault(&o.TCPAddress, "127.0.0.1:4150")
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
	orDefault(&o.MaxMessageBytes, 1<<20)
	orDefault(&o.MaxBodyBytes, 5<<20)
	orDefault(&o.MaxOutputBufferBytes, 64<<10)
	orDefault(&o.MaxOutputBufferTimeout, 30*time.Second)
	orDefault(&o.HeartbeatInterval, 30*time.Second)
	orDefault(&o.MaxHeartbeatInterval, 60*time.Second)
	orDefault(&o.MsgTimeout, 60*time.Second)
	orDefault(&o.MaxMsgTimeout, 15*time.Minute)
	orDefault(&o.MaxReqTimeout, time.Hour)
	orDefault(&o.MaxDefer, time.Hour)
	orDefault(&o.MaxConnections, 65536)
	orDefault(&o.MaxConnInFlightBytes, 16<<20)
	orDefault(&o.MaxConnInFlightCount, 65536)
	orDefault(&o.MaxConnOutputBytes, 256<<10)
	orDefault(&o.MaxCommandTime, 60*time.Second)
	orDefault(&o.WriteTimeout, 30*time.Second)
	orDefault(&o.MaxDeflateLevel, defaultDeflateLevel)
	orDefault(&o.MaxInflationRatio, 256)
	orDefault(&o.HandshakeTimeout, 5*time.Second)
	orDefault(&o.MaxHandshakes, 1024)
	if err := o.TLS.setDefaults(); err != nil {
		return err
	}
	if err := o.Auth.SetDefaults(); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	return lookup.CheckNsqlookupds(o.LookupdTCPAddresses)
}

// setLookupDefaults opens the port for registrations by default only while lookups are at their default address, which
// is local. Anybody who reaches that port can register, so whoever opens lookups to others decides about it.
func (o *Options) setLookupDefaults() {
	const own = "127.0.0.1:4161"
	orDefault(&o.LookupAddress, own)
	if o.LookupTCPAddress == "" {
		o.LookupTCPAddress = Off
		if o.LookupAddress == own {
			o.LookupTCPAddress = "127.0.0.1:4160"
		}
	}
	orDefault(&o.InactiveProducerTimeout, 5*time.Minute)
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
		return fmt.Errorf("nsq: HTTPS on %s needs a certificate; set TLS.CertFile and TLS.KeyFile", o.HTTPSAddress)
	case o.MaxRdyCount < 1:
		return fmt.Errorf("nsq: MaxRdyCount is %d; clients would never get a message", o.MaxRdyCount)
	case o.MaxInFlightBytes < 0:
		return fmt.Errorf("nsq: MaxInFlightBytes is %d; no message would ever be delivered. Leave it 0 for no limit",
			o.MaxInFlightBytes)
	case o.MaxConnInFlightBytes < 1 || o.MaxConnInFlightCount < 1 || o.MaxConnections < 1 || o.MaxConnOutputBytes < 1:
		return fmt.Errorf("nsq: a connection limit is negative; leave it 0 for the default")
	}
	return nil
}

func (o *Options) limits() limits {
	return limits{
		maxMessageBytes: o.MaxMessageBytes,
		maxBodyBytes:    o.MaxBodyBytes,
		maxRdyCount:     o.MaxRdyCount,
		maxDeferMillis:  uint64(o.MaxDefer / time.Millisecond),
	}
}
