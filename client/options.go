package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"penstock/batch"
	"penstock/internal/server/native/wire"
)

// Limits and defaults.
const (
	// MaxInFlight bounds ProducerOptions.InFlight: a leader remembers that many batches of a producer.
	MaxInFlight = 8
	// MaxHeaderCount bounds the headers of a message, its key included.
	MaxHeaderCount = batch.MaxHeaderCount - batch.ReservedHeaderCount
	// MaxHeaderNameBytes bounds the name of a header.
	MaxHeaderNameBytes = 256
	// KeyHeader is the name of the header that holds a message's key in the cluster.
	KeyHeader = "key"
	// ReservedHeaders is the prefix of header names that only nodes write.
	ReservedHeaders = "penstock-"

	DefaultMinDelay         = 50 * time.Millisecond
	DefaultMaxDelay         = 2 * time.Second
	DefaultMaxBatchBytes    = 1 << 20
	DefaultMaxBufferedBytes = 64 << 20
	DefaultDeliveryTimeout  = 30 * time.Second

	// DefaultMaxInFlight and DefaultMaxInFlightBytes are a Consumer's.
	DefaultMaxInFlight      = 256
	DefaultMaxInFlightBytes = 16 << 20

	// ReadCreditBytes bounds the batches that a leader sends a Reader ahead of Next, except that one batch may be
	// longer.
	ReadCreditBytes = 1 << 20

	connectTimeout = 5 * time.Second // for one attempt to connect, with TLS and the token
)

// ID is the id of a message in its topic: the partition and the message's number there. It never changes.
type ID = batch.ID

// Header is the name and the value of one of a message's headers. Names are compared byte by byte.
type Header struct{ Key, Value []byte }

// Compression says how a producer compresses its batches.
type Compression = batch.Codec

// Ways to compress. A batch that does not get smaller is stored as it is, and so is one that gets smaller than by the
// factor of 256, beyond 64 KiB: nodes refuse what becomes so much larger.
const (
	CompressNone = batch.CodecNone
	CompressS2   = batch.CodecS2   // fast
	CompressZstd = batch.CodecZstd // smaller
)

// Message is one message.
type Message struct {
	// Key chooses the partition: messages with equal keys keep their order as long as the topic has as many partitions.
	// It is stored with the message, as the header KeyHeader. nil: none.
	Key     []byte
	Headers []Header // without the key; at most MaxHeaderCount
	Body    []byte   // at least one byte

	// ID and Time are set by a Reader or a Consumer; Produce ignores them. Time is when the message was produced, by the
	// producer's clock.
	ID   ID
	Time time.Time
}

// Options of a Client. The zero value connects without TLS and without a token.
type Options struct {
	// TLS, if set, is used for every connection. Without a ServerName, the host of the node's address is verified. Unless
	// it has a ClientSessionCache or a VerifyPeerCertificate, the Client keeps session tickets, so that a node need not
	// sign anything for a client that comes back.
	TLS *tls.Config
	// Token, if set, is called for every connection; its result says to the node at address (host:port, one of the seeds
	// or what the cluster says) who the client is. Without TLS it is sent in clear. An error is logged, and the connection
	// is tried again later. It is called again, once a second at most, when the node answers that the token does not allow
	// something: another result takes the place of the first one. Several goroutines may call it at once.
	Token func(ctx context.Context, address string) (string, error)
	// Dial, if set, opens every connection, before TLS. address is where the node listens, after Addresses was applied.
	// Several goroutines may call it at once, and it must end with ctx.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Addresses says where to dial what the cluster announces, by HOST:PORT, such as the local ends of forwarded ports.
	// With TLS the host that is announced is verified. An address that is not in it is dialed as it is.
	Addresses map[string]string
	// Logger gets what happens to connections. nil: slog.Default().
	Logger *slog.Logger
	Hooks  Hooks
	// MinDelay and MaxDelay bound the pause before anything is tried again: it doubles from MinDelay (0: 50 ms) to
	// MaxDelay (0: 2 s), and up to a half of it is random. A node that says that it is busy is tried again after a pause
	// that is random as a whole: at most 1 s, doubling to 30 s.
	MinDelay, MaxDelay time.Duration
}

// Hooks are called when something happens, for metrics and traces. They must return soon, because what they tell of
// waits meanwhile, and may be called from several goroutines at once. A nil hook is not called.
type Hooks struct {
	// Produced is called for every batch after its messages' done functions, maybe by a goroutine that is in ProduceSync.
	Produced func(ProducedBatch)
	// Delivered is called for every delivery before Next or Batch returns it, by the goroutine that called these. The
	// message's headers may carry a trace.
	Delivered func(topic, channel string, d Delivery)
	// Connected and Disconnected are called for every connection that a node has accepted.
	Connected    func(address string)
	Disconnected func(address string, err error)
	// Failed is called for every attempt to connect that has failed.
	Failed func(address string, err error)
}

// ProducedBatch is what became of a batch.
type ProducedBatch struct {
	Topic     string
	Partition int
	First     ID // of its messages, which have consecutive ids; 0 if Err is not nil
	Count     int
	Bytes     int           // as sent, compressed; 0: it was not sent
	Duplicate bool          // an attempt without an answer had stored it, and the next one found it
	Took      time.Duration // since its first message was produced
	Err       error
}

// ProducerOptions are a producer's settings. The zero value of a field selects its default.
type ProducerOptions struct {
	// Name makes the producer the same one after its program was started again: its sequence numbers go on (see
	// Producer.LastSequence), and opening it ends an older program's producer with ErrFenced, at all partitions. Empty:
	// a new one, whose messages are stored once each through every failure for as long as it is open. Where clients have
	// tokens, a name belongs to the token that opened it first: others get ErrUnauthorized.
	Name string
	// Linger is how long a message waits for others to share its batch. 0: it does not wait, and batches form while
	// InFlight batches are on their way.
	Linger time.Duration
	// MaxBatchBytes bounds a batch before compression, 1 KiB to 16 MiB (0: 1 MiB). A longer message travels alone. A node
	// takes or refuses a batch as a whole. Where the nodes' limits are lower (6 MiB for a batch, 1 MiB for a body and
	// 32 KiB for a message's headers, if nobody has set others), the producer divides a batch that is refused, and sends
	// its halves, until only messages above a limit are left: they get ErrTooLarge. Meanwhile nothing else of the
	// partition is sent. If a connection is lost at the same time, other messages of the batch may get ErrTooLarge, too.
	MaxBatchBytes int
	// MaxBufferedBytes bounds what the messages need that were taken and whose done was not called yet (0: 64 MiB).
	MaxBufferedBytes int
	// InFlight is how many batches of a partition are on their way at a time, 1 to MaxInFlight (0: MaxInFlight).
	InFlight    int
	Compression Compression
	// Partition chooses the partition of a message among n, in the goroutine that produces it; a result outside of
	// [0, n) gives ErrRefused. nil: by the key, else any partition that has a leader, another one after each batch.
	Partition func(m *Message, n int) int
	// StopAtFailure ends the producer at a partition, with ErrStopped, after the first message there that was not stored
	// or of which that is unknown. So with a Name the message that is produced n-th has sequence n-1, or none.
	StopAtFailure bool
	// DeliveryTimeout is how long a message may take from Produce until done is called (0: 30 s).
	DeliveryTimeout time.Duration
}

// ConsumerOptions are a consumer's settings. The zero value of a field selects its default.
type ConsumerOptions struct {
	// MaxInFlight is how many messages the nodes send that are not finished, 1 to 1,048,576 (0: 256). A message waits in
	// the client while those before it are handled, and its Timeout runs: choose less than Timeout divided by the time
	// that a message takes, more where messages take microseconds.
	//
	// The nodes that lead the topic's partitions share it, in proportion to the partitions that each leads. Shares are
	// rounded so that their sum is MaxInFlight; but a node gets at least one, so the sum may exceed it by the number of
	// these nodes. After a change of leaders more may be in flight, until those that were in flight before are finished.
	// A node sends at most 65,536.
	MaxInFlight int
	// MaxInFlightBytes bounds the bytes of these messages, their headers included, 1 to 1 GiB (0: 16 MiB). Nodes share it
	// in the same way. Each may exceed its share by one message, so a message that is larger than the limit arrives, too.
	MaxInFlightBytes int
	// Timeout is how long after its delivery a message is delivered again if it is not finished, requeued or touched. It
	// counts in milliseconds, and nodes limit it (--max-msg-timeout). 0: what the nodes have (--msg-timeout, 60 s).
	Timeout time.Duration
	// From is where a channel begins that does not exist yet: FromOldest, FromNewest, FromTime, or FromID for the
	// partition that has the message. The zero value: where channels begin otherwise. It means nothing for a channel that
	// exists.
	From From
	// Tag restricts the consumer to messages whose header "tag" has this value. Empty: messages without a tag, and those
	// whose tag no consumer has.
	Tag string
	// SampleRate is the percentage of the messages that the consumer gets, 1 to 99; the others are finished unseen. 0 and
	// 100: all.
	SampleRate int
	// Partition restricts the consumer to one partition. nil: all.
	Partition *int
}

func (o *ConsumerOptions) withDefaults() (ConsumerOptions, error) {
	c := *o
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.MaxInFlightBytes == 0 {
		c.MaxInFlightBytes = DefaultMaxInFlightBytes
	}
	switch {
	case c.MaxInFlight < 1 || c.MaxInFlight > 1<<20:
		return c, fmt.Errorf("client: MaxInFlight is %d; use 1 to %d", c.MaxInFlight, 1<<20)
	case c.MaxInFlightBytes < 1 || c.MaxInFlightBytes > wire.MaxCreditBytes:
		return c, fmt.Errorf("client: MaxInFlightBytes is %d; use 1 to %d", c.MaxInFlightBytes, wire.MaxCreditBytes)
	case c.Timeout < 0:
		return c, fmt.Errorf("client: Timeout is %v; use a positive one", c.Timeout)
	case c.SampleRate < 0 || c.SampleRate > 100:
		return c, fmt.Errorf("client: SampleRate is %d; use 1 to 99, or 0 for all messages", c.SampleRate)
	case c.Partition != nil && *c.Partition < 0:
		return c, fmt.Errorf("client: Partition is %d; the first one is 0", *c.Partition)
	case len(c.Tag) > wire.MaxNameBytes:
		return c, fmt.Errorf("client: Tag has %d bytes; use at most %d", len(c.Tag), wire.MaxNameBytes)
	}
	return c, nil
}

func (o *Options) withDefaults() Options {
	c := *o
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MinDelay <= 0 {
		c.MinDelay = DefaultMinDelay
	}
	if c.MaxDelay <= 0 {
		c.MaxDelay = DefaultMaxDelay
	}
	c.MaxDelay = max(c.MaxDelay, c.MinDelay)
	if c.TLS != nil && c.TLS.ClientSessionCache == nil && c.TLS.VerifyPeerCertificate == nil {
		c.TLS = c.TLS.Clone()
		c.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	return c
}

func (o *ProducerOptions) withDefaults() (ProducerOptions, error) {
	c := *o
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.MaxBatchBytes, DefaultMaxBatchBytes)
	set(&c.MaxBufferedBytes, DefaultMaxBufferedBytes)
	set(&c.InFlight, MaxInFlight)
	if c.DeliveryTimeout == 0 {
		c.DeliveryTimeout = DefaultDeliveryTimeout
	}
	switch {
	case c.MaxBatchBytes < 1<<10 || c.MaxBatchBytes > batch.MaxBatchBytes:
		return c, fmt.Errorf("client: MaxBatchBytes is %d; use 1 KiB to 16 MiB", c.MaxBatchBytes)
	case c.MaxBufferedBytes < c.MaxBatchBytes:
		return c, fmt.Errorf("client: MaxBufferedBytes is %d; use at least MaxBatchBytes, %d", c.MaxBufferedBytes,
			c.MaxBatchBytes)
	case c.InFlight < 1 || c.InFlight > MaxInFlight:
		return c, fmt.Errorf("client: InFlight is %d; use 1 to %d", c.InFlight, MaxInFlight)
	case c.Linger < 0 || c.DeliveryTimeout < 0 || c.Linger >= c.DeliveryTimeout:
		return c, fmt.Errorf("client: Linger is %v and DeliveryTimeout %v; the second must be longer", c.Linger,
			c.DeliveryTimeout)
	case c.Compression > batch.CodecZstd:
		return c, fmt.Errorf("client: compression %d is unknown", c.Compression)
	}
	return c, nil
}

// delay is the pause before the next attempt after so many failures.
func (o *Options) delay(fails int) time.Duration {
	d := o.MinDelay << min(max(fails-1, 0), 16)
	if d > o.MaxDelay || d < o.MinDelay {
		d = o.MaxDelay
	}
	return d - rand.N(d/2+1)
}
