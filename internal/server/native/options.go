package native

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/shares"
)

// Options configure a Server. The zero value of a field stands for its default.
type Options struct {
	// Listener accepts the connections; the Server closes it.
	Listener net.Listener

	// Secure returns a listener whose connections are *tls.Conn on those of the other one. nil: they are not encrypted.
	Secure func(net.Listener) net.Listener
	Auth   *auth.Authority // nil: every client may do everything

	// Topic returns the topic of that name, and creates it if the node may; created says that it did. It then counts for
	// the token: see auth.Principal.Maker. Default: what Engine.TopicAs does, and created is false.
	Topic func(ctx context.Context, token, name string) (t *node.Topic, created bool, err error)
	// Stored is told how long a batch took from its arrival until it was answered OK, of one in 16 by chance. Any
	// goroutine of the engine may call it, which may hold locks: it must not block. nil: nobody is told.
	Stored func(took time.Duration)
	// Refused is told of each client that did not prove who it is, or may not do what it asked for, and why. It must not
	// block. nil: nobody is told.
	Refused func(e audit.Entry, why string)
	// Busy is told of each connection that was refused because MaxHandshakes others are in their handshake. It must not
	// block. nil: nobody is told.
	Busy func()
	// Created is told of each topic and channel that a client has created. A client that subscribes to a new channel at
	// several nodes at once may be told of by more than one of them. It must not block. nil: nobody is told.
	Created func(audit.Entry)

	Logger *slog.Logger

	// Answers sends answers that are due together, to the clients of all protocols. It must stay open until Shutdown has
	// returned. nil: each answer is written by itself.
	Answers *netio.Flusher

	// Known has the connections of clients that have sent Auth, of all protocols; nil: they are not counted.
	Known *shares.Budget

	MaxConnections int // further ones are told to try another node; default 65536

	// Of connections whose client has to send Auth and has not.
	MaxStrangers     int           // for one beyond it the oldest of the address that has the most is closed; default 256
	MaxStrangerBytes int           // of all frames of one before Auth; default 4 KiB
	StrangerTime     time.Duration // to send Auth; default 10 s

	HandshakeTimeout time.Duration // of TLS and netproto together; default 5 s
	MaxHandshakes    int           // connections that are in them at a time; further ones are refused; default 1024

	// Requests of a connection that are not answered yet, and the bytes of these frames. What exceeds them is answered
	// StatusFull. MaxInFlightBytes is for all connections together.
	MaxConnInFlightCount int   // default 4096
	MaxConnInFlightBytes int   // default 16 MiB
	MaxInFlightBytes     int64 // default 256 MiB

	// Readers of one connection, and of all; a further one is answered StatusFull.
	MaxConnReaders int // default 256
	MaxReaders     int // default 16384
	// Subscriptions of one connection, and of all; a further one is answered StatusFull.
	MaxConnSubscriptions int // default 256
	MaxSubscriptions     int // default 16384
	// MaxMessagesInFlight bounds how many messages may be in flight to one subscription; more credit is cut to it. nsq's
	// MaxRdyCount does not count here: it belongs to the NSQ protocol, which tells it to clients and closes the
	// connection of one that asks for more.
	MaxMessagesInFlight int // default 65536

	// Bytes of batches and messages for clients that are not written to their connections yet, for one connection and
	// for all. Of these, MaxPinnedBytes may lie in memory of the engine; the rest are copies.
	MaxConnOutputBytes int64 // default 4 MiB
	MaxOutputBytes     int64 // default 256 MiB
	MaxPinnedBytes     int64 // default 16 MiB

	writeTimeout time.Duration // of connections; 0: netproto's default

	pageBytes int // a longer Metadata is sent in pieces; default metadataPageBytes
}

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o *Options) setDefaults(e *node.Engine) error {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Topic == nil {
		o.Topic = func(ctx context.Context, token, name string) (*node.Topic, bool, error) {
			t, err := e.TopicAs(ctx, token, name)
			return t, false, err
		}
	}
	if o.Refused == nil {
		o.Refused = func(audit.Entry, string) {}
	}
	if o.Stored == nil {
		o.Stored = func(time.Duration) {}
	}
	orDefault(&o.MaxConnections, 65536)
	orDefault(&o.MaxStrangers, 256)
	orDefault(&o.MaxStrangerBytes, 4<<10)
	orDefault(&o.StrangerTime, 10*time.Second)
	orDefault(&o.HandshakeTimeout, 5*time.Second)
	orDefault(&o.MaxHandshakes, 1024)
	orDefault(&o.MaxConnInFlightCount, 4096)
	orDefault(&o.MaxConnInFlightBytes, 16<<20)
	orDefault(&o.MaxInFlightBytes, 256<<20)
	orDefault(&o.MaxConnReaders, 256)
	orDefault(&o.MaxReaders, 16384)
	orDefault(&o.MaxConnSubscriptions, 256)
	orDefault(&o.MaxSubscriptions, 16384)
	orDefault(&o.MaxMessagesInFlight, 65536)
	orDefault(&o.MaxConnOutputBytes, 4<<20)
	orDefault(&o.MaxOutputBytes, 256<<20)
	orDefault(&o.MaxPinnedBytes, 16<<20)
	orDefault(&o.pageBytes, metadataPageBytes)
	switch {
	case o.Listener == nil:
		return fmt.Errorf("native: Options.Listener is missing")
	case o.MaxConnections < 1 || o.MaxStrangers < 1 || o.MaxStrangerBytes < 1 || o.StrangerTime < 0 ||
		o.HandshakeTimeout < 0 || o.MaxHandshakes < 1 ||
		o.MaxConnInFlightCount < 1 || o.MaxConnInFlightBytes < 1 || o.MaxInFlightBytes < 1 ||
		o.MaxConnSubscriptions < 1 || o.MaxSubscriptions < 1 || o.MaxMessagesInFlight < 1 ||
		o.MaxConnReaders < 1 || o.MaxReaders < 1 || o.MaxConnOutputBytes < 1 || o.MaxOutputBytes < 1 || o.MaxPinnedBytes < 1:
		return fmt.Errorf("native: a limit of Options is negative; leave it 0 for the default")
	}
	return nil
}
