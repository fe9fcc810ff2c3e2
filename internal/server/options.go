package server

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"penstock/internal/descriptors"
	"penstock/internal/server/api"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/listen"
	"penstock/internal/server/lookup"
	"penstock/internal/server/metrics"
	"penstock/internal/server/nsq"
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

	nsq.Settings // those of the NSQ protocol, some of which the other ports obey, too

	lookupdPing time.Duration // tests only: lookup.Options.PingInterval

	// Directory is the source for lookups; nil: the engine.
	Directory lookup.Directory

	Reload func() *api.Reload // see api.Options

	// ConfigValues answers GET /config/<name> for options other than the two that can be set; nil: no others.
	ConfigValues func(name string) (value any, ok bool)
	ConfigList   func() []api.Setting // of GET /config; nil: it is empty
}

func (o *Options) setDefaults() error {
	o.TCPAddress = cmp.Or(o.TCPAddress, ownTCPAddress)
	o.setNativeDefault()
	o.HTTPAddress = cmp.Or(o.HTTPAddress, "127.0.0.1:4151")
	o.setLookupDefaults()
	o.HTTPSAddress = cmp.Or(o.HTTPSAddress, Off)
	if o.Hostname == "" {
		h, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("nsq: cannot find the host's name (%w); set Options.Hostname", err)
		}
		o.Hostname = h
	}
	o.BroadcastAddress = cmp.Or(o.BroadcastAddress, o.Hostname)
	o.Version = cmp.Or(o.Version, "1.3.0+engine")
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.LogLevel == nil {
		o.LogLevel = new(slog.LevelVar)
	}
	o.Statsd.Interval = cmp.Or(o.Statsd.Interval, time.Minute)
	o.Statsd.PacketBytes = cmp.Or(o.Statsd.PacketBytes, 508)
	o.MaxMetricSeries = cmp.Or(o.MaxMetricSeries, metrics.DefaultMaxSeries)
	o.HTTPIdleTime = cmp.Or(o.HTTPIdleTime, web.DefaultIdleTime)
	if err := o.TLS.setDefaults(); err != nil {
		return err
	}
	if o.Auth.Logger == nil {
		o.Auth.Logger = o.Logger
	}
	if err := o.Auth.SetDefaults(); err != nil {
		return err
	}
	if err := o.Settings.SetDefaults(); err != nil {
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
	o.LookupAddress = cmp.Or(o.LookupAddress, own)
	if o.LookupTCPAddress == "" {
		o.LookupTCPAddress = Off
		if o.LookupAddress == own && !o.Auth.Enabled() {
			o.LookupTCPAddress = "127.0.0.1:4160"
		}
	}
	o.InactiveProducerTimeout = cmp.Or(o.InactiveProducerTimeout, 5*time.Minute)
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
	}
	return nil
}
