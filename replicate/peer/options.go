package peer

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
	"penstock/replicate"
)

const (
	// ProtocolVersion numbers the meaning of the frames' payloads; nodes that have no version in common do not connect.
	ProtocolVersion netproto.Version = 1

	// DefaultMaxHandshakeCount is the default of Options.MaxHandshakeCount.
	DefaultMaxHandshakeCount = 64

	// DefaultSilenceTimeout is how long a connection may stay silent, although it is pinged, before it is ended.
	DefaultSilenceTimeout = 3 * time.Second

	// MinBackoff and MaxBackoff bound the pause between two dials of a node; a quarter of a pause is random.
	MinBackoff = 50 * time.Millisecond
	MaxBackoff = time.Second

	// ProbeTimeout bounds one dial that finds out whether a process is gone. ProbeSpan bounds how long such dials are
	// repeated while they succeed.
	ProbeTimeout = 500 * time.Millisecond
	ProbeSpan    = 60 * time.Millisecond
	probePause   = 10 * time.Millisecond
)

// ErrNotConnected is returned by TrySend: there is no connection to the node just now, and Up will say when there is
// one. The frame was not taken, and its Owner was not released.
var ErrNotConnected = errors.New("peer: there is no connection to the node just now: the frame was not taken")

// The reasons for which this side ends a connection.
var (
	errSuperseded = errors.New("peer: the node has connected anew")
	errGone       = errors.New("peer: the node is not in the cluster's table any more")
	errCrowded    = errors.New("peer: too many connections came before its handshake was over")
	errChanged    = errors.New("peer: the node has another address, process or store")
)

// Handler is told of connections and gets their frames. For one node, Up and Down alternate and Frames comes between
// them. Calls for different nodes are concurrent. No method may call Net.Close, and a method that does not return holds
// up its node's connection and Close.
type Handler interface {
	// Frames gets the frames that arrived together, in the order in which they were sent. burst and the payloads are
	// valid until Frames returns; to keep a payload longer, retain its Buf. While Frames runs, nothing is read from
	// that node, not even its pings, so Frames must be quicker than SilenceTimeout.
	Frames(from replicate.NodeID, boot uuid.UUID, burst []netproto.Received)
	// Up says that TrySend now reaches process boot of the node. Frames on an earlier connection may have been lost.
	Up(node replicate.NodeID, boot uuid.UUID)
	// Down says that the connection of the last Up has ended. refused says that the connection was closed and the
	// node's address refuses new ones, so the process is gone.
	Down(node replicate.NodeID, boot uuid.UUID, refused bool)
}

// Node is a node of the cluster, as far as connections need to know it.
type Node struct {
	ID      replicate.NodeID
	Name    string    // at most netproto.MaxNodeIDBytes printable ASCII characters without blanks
	Store   uuid.UUID // of its data directory
	Boot    uuid.UUID // of its process
	Address string    // HOST:PORT between nodes
}

// Trust says how the nodes of a cluster prove to each other that they belong to it. Of the zero value they do not: then
// whoever reaches the port can pretend to be a node. Both sides need the same kinds of proof.
type Trust struct {
	// Secrets returns the secrets of the cluster; see netproto.Options.Secrets. nil: none.
	Secrets func() []netproto.Secret
	// TLS returns the configurations for one handshake, of a connection that another node began or that this one
	// begins; the Net sets the ServerName of client. nil: no TLS.
	TLS func() (server, client *tls.Config)
	// Names says for which nodes a certificate speaks. "" means NamesOfNodes.
	Names Names
}

// Options configure a Net.
type Options struct {
	Self     Node // all but Address
	Cluster  uuid.UUID
	Listener net.Listener // the Net owns it
	Handler  Handler
	Logger   *slog.Logger // nil: the default one
	Trust    Trust
	// MaxHandshakeCount bounds the accepted connections whose handshake is not over: the peers that have not shown yet
	// that they belong to the cluster. Each costs a few KiB, with TLS at most a few hundred. If another one comes, the
	// oldest of the address that has the most is closed, so that peers that say nothing cannot keep nodes out. 0:
	// DefaultMaxHandshakeCount.
	MaxHandshakeCount int
	// Conn has the limits of every connection. Zero values mean netproto's defaults, except SilenceTimeout, whose
	// default is DefaultSilenceTimeout. The Net itself sets Handler, Admit, and Hello except Hello's limits.
	Conn netproto.Options
}

func (o *Options) withDefaults() Options {
	c := *o
	switch {
	case c.Handler == nil || c.Listener == nil:
		panic("BUG: peer: Options without Handler or Listener")
	case c.Self.ID == 0 || c.Self.Name == "" || c.Self.Store == uuid.Nil || c.Self.Boot == uuid.Nil ||
		c.Cluster == uuid.Nil:
		panic("BUG: peer: Options.Self or Cluster is not set")
	}
	if c.MaxHandshakeCount < 0 {
		panic("BUG: peer: Options.MaxHandshakeCount is negative")
	}
	c.MaxHandshakeCount = cmp.Or(c.MaxHandshakeCount, DefaultMaxHandshakeCount)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.setConn()
	return c
}

// setConn fills in the options of connections.
func (c *Options) setConn() {
	c.Conn.Secrets = c.Trust.Secrets
	if c.Conn.SilenceTimeout == 0 {
		c.Conn.SilenceTimeout = DefaultSilenceTimeout
	}
	if c.Conn.HandshakeTimeout == 0 {
		c.Conn.HandshakeTimeout = netproto.DefaultHandshakeTimeout
	}
	h := &c.Conn.Hello
	h.Role, h.Cluster, h.Store, h.Boot, h.NodeID = netproto.RoleNode, netproto.ID(c.Cluster), netproto.ID(c.Self.Store),
		netproto.ID(c.Self.Boot), c.Self.Name
	h.MinVersion, h.MaxVersion = ProtocolVersion, ProtocolVersion
}

// validName says whether name can be sent in a Hello.
func validName(name string) error {
	if !netproto.ValidNodeID(name) {
		return fmt.Errorf("peer: %q cannot be a node's name: give it at most %d printable ASCII characters without blanks",
			name, netproto.MaxNodeIDBytes)
	}
	return nil
}
