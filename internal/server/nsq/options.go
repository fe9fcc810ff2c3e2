package nsq

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/publish"
	"penstock/internal/shares"
	"penstock/internal/sparing"
	"penstock/internal/strangers"
)

// Options are what a Server needs: its settings, and what it shares with the other ports of its node.
type Options struct {
	// Settings are those of now: whoever replaces them changes them for all that is done from then on. What a connection
	// has been told, or has been given when it was made, stays as it is.
	Settings *atomic.Pointer[Settings]

	Listener    *net.TCPListener // the Server closes it
	TLS         *tls.Config      // for handshakes; nil: TLS is not offered
	TLSRequired bool             // of connections, before any other command than IDENTIFY
	Auth        *auth.Authority  // nil: every client may do everything
	Version     string           // that clients are told

	// Topic returns the topic of that name, and creates it if the node may; created says that it did. maker returns the
	// token for which it then counts: see auth.Principal.Maker.
	Topic func(ctx context.Context, name string, maker func() (string, error)) (t *node.Topic, created bool, err error)

	Answers   *netio.Flusher  // sends answers that are due together; it stays open until Shutdown has returned
	Known     *shares.Budget  // connections whose client has sent AUTH
	Received  *shares.Budget  // large commands that have not wholly arrived: see MaxLargeInputBytes
	Strangers *strangers.Room // connections whose client has to send AUTH and has not
	Publishes *publish.Counts
	Audit     *audit.Log

	Log    *sparing.Log // of what strangers can cause
	Logger *slog.Logger
}

// Settings are those of the V2 protocol. Limits that the engine has, too (message size, timeouts), should be given
// the same values there. The zero value of a field stands for its default.
type Settings struct {
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

	AskForChannel time.Duration // for which a SUB waits to learn whether it creates its channel; default 1 s

	ModerationPace time.Duration // 0: as in moderate.go; tests of loaded machines set it

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

	LargeInputGrace time.Duration // tests only: how long a large command may come at any rate; 10 s
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

func (o *Settings) SetDefaults() error {
	o.MaxRdyCount = cmp.Or(o.MaxRdyCount, 2500)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 1<<20)
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 5<<20)
	o.MaxOutputBufferBytes = cmp.Or(o.MaxOutputBufferBytes, 64<<10)
	o.MinOutputBufferTimeout = cmp.Or(o.MinOutputBufferTimeout, 25*time.Millisecond)
	o.MaxOutputBufferTimeout = cmp.Or(o.MaxOutputBufferTimeout, 30*time.Second)
	o.HeartbeatInterval = cmp.Or(o.HeartbeatInterval, 30*time.Second)
	o.MaxHeartbeatInterval = cmp.Or(o.MaxHeartbeatInterval, 60*time.Second)
	o.MsgTimeout = cmp.Or(o.MsgTimeout, 60*time.Second)
	o.MaxMsgTimeout = cmp.Or(o.MaxMsgTimeout, 15*time.Minute)
	o.MaxReqTimeout = cmp.Or(o.MaxReqTimeout, time.Hour)
	o.AskForChannel = cmp.Or(o.AskForChannel, time.Second)
	o.MaxDefer = cmp.Or(o.MaxDefer, time.Hour)
	o.MaxConnections = cmp.Or(o.MaxConnections, 65536)
	o.MaxConnInFlightBytes = cmp.Or(o.MaxConnInFlightBytes, 16<<20)
	o.MaxConnInFlightCount = cmp.Or(o.MaxConnInFlightCount, 65536)
	o.MaxConnOutputBytes = cmp.Or(o.MaxConnOutputBytes, 256<<10)
	o.MaxCommandTime = cmp.Or(o.MaxCommandTime, 60*time.Second)
	o.MaxStrangers = cmp.Or(o.MaxStrangers, 256)
	o.MaxStrangerBytes = cmp.Or(o.MaxStrangerBytes, 4<<10)
	o.StrangerTime = cmp.Or(o.StrangerTime, 10*time.Second)
	o.MaxLargeInputBytes = cmp.Or(o.MaxLargeInputBytes, max(256<<20, o.LargestCommand()))
	o.LargeInputGrace = cmp.Or(o.LargeInputGrace, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.ModerationPace = cmp.Or(o.ModerationPace, moderationPace)
	o.MaxDeflateLevel = cmp.Or(o.MaxDeflateLevel, defaultDeflateLevel)
	o.MaxInflationRatio = cmp.Or(o.MaxInflationRatio, 256)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 5*time.Second)
	o.MaxHandshakes = cmp.Or(o.MaxHandshakes, 1024)
	return o.check()
}

func (o *Settings) check() error {
	switch {
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
	case o.MaxRdyCount < 1:
		return fmt.Errorf("nsq: MaxRdyCount is %d; clients would never get a message", o.MaxRdyCount)
	case o.MaxInFlightBytes < 0:
		return fmt.Errorf("nsq: MaxInFlightBytes is %d; no message would ever be delivered. Leave it 0 for no limit",
			o.MaxInFlightBytes)
	case o.MaxStrangers < 1 || o.MaxStrangerBytes < 1 || o.StrangerTime < 0:
		return fmt.Errorf("nsq: a limit for clients before AUTH is negative; leave it 0 for the default")
	case o.MaxLargeInputBytes < o.LargestCommand():
		return fmt.Errorf("nsq: MaxLargeInputBytes is %d; the largest command alone takes %d", o.MaxLargeInputBytes,
			o.LargestCommand())
	case o.MaxConnInFlightBytes < 1 || o.MaxConnInFlightCount < 1 || o.MaxConnections < 1 || o.MaxConnOutputBytes < 1:
		return fmt.Errorf("nsq: a connection limit is negative; leave it 0 for the default")
	}
	return nil
}

// LargestCommand returns the memory that the largest command takes while it arrives.
func (o *Settings) LargestCommand() int64 {
	return int64(blockBytes(o.MaxBodyBytes + command.MaxLineBytes + publish.SizeBytes))
}

func (o *Settings) limits() command.Limits {
	return command.Limits{
		MaxMessageBytes: o.MaxMessageBytes,
		MaxBodyBytes:    o.MaxBodyBytes,
		MaxRdyCount:     o.MaxRdyCount,
		MaxDeferMillis:  uint64(o.MaxDefer / time.Millisecond),
	}
}
