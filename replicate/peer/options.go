package peer

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/google/uuid"

	"penstock/engine/meta"
	"penstock/netproto"
	"penstock/replicate"
)

const (
	// ProtocolVersion is what the payloads of this version's frames mean; nodes that have none in common do not connect.
	ProtocolVersion netproto.Version = 1

	// MaxHandshakeCount bounds the accepted connections that have not said Hello yet; more are closed.
	MaxHandshakeCount = 64

	// DefaultSilenceTimeout ends a connection on which nothing was heard, although it was pinged.
	DefaultSilenceTimeout = 3 * time.Second

	// MinBackoff and MaxBackoff are between two dials of a node; a quarter of it is random.
	MinBackoff = 50 * time.Millisecond
	MaxBackoff = time.Second

	// ProbeTimeout bounds one dial that looks whether a process is gone, ProbeSpan how long dials that succeed are
	// repeated.
	ProbeTimeout = 500 * time.Millisecond
	ProbeSpan    = 60 * time.Millisecond
	probePause   = 10 * time.Millisecond
)

// ErrNotConnected is TrySend's: there is no connection to the node just now, and Up will say when there is. The frame
// was not taken, its Owner not released.
var ErrNotConnected = errors.New("peer: there is no connection to the node just now: the frame was not taken")

// Why this side ended a connection.
var (
	errSuperseded = errors.New("peer: the node has connected anew")
	errGone       = errors.New("peer: the node is not in the cluster's table any more")
	errChanged    = errors.New("peer: the node has another address, process or store")
)

// Handler is told of connections and gets their frames. Up and Down of one node alternate; Frames comes between them.
// Calls for different nodes come at the same time. No method may call Net.Close, and one that does not return holds up
// its node's connection, and Close.
type Handler interface {
	// Frames gets the frames that arrived together, in the order in which they were sent. burst and the payloads are valid
	// until it returns; to keep a payload longer, retain its Buf. While it runs nothing is read from that node, its pings
	// neither: it must be quicker than SilenceTimeout. If it has something to do at its end that may hang, it calls
	// MayBlock on r before; then Net.ReadOn lets another call read from that node meanwhile.
	Frames(from replicate.NodeID, boot uuid.UUID, burst []netproto.Received, r Reading)
	// Up says that TrySend reaches the process boot of the node. What was sent on a connection before may have been lost.
	Up(node replicate.NodeID, boot uuid.UUID)
	// Down says that the connection of the last Up has ended. refused: by closing, and the node's address refuses
	// connections, so that process is gone.
	Down(node replicate.NodeID, boot uuid.UUID, refused bool)
}

// Reading is the connection whose goroutine calls Handler.Frames. See netproto.Conn.MayBlock.
type Reading interface{ MayBlock() }

// Options say who this node is.
type Options struct {
	Self     meta.Node // ID, Name, Store and Boot
	Cluster  uuid.UUID
	Listener net.Listener // the Net owns it
	Handler  Handler
	Logger   *slog.Logger // nil: the default one
	// Conn has the limits of every connection. Its zero values are netproto's defaults, but for SilenceTimeout, which is
	// DefaultSilenceTimeout; Hello (but for its limits), Handler and Admit are set by the Net.
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
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
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
	return c
}

// validName says whether the name can stand in a Hello.
func validName(name string) error {
	for i := range len(name) {
		if name[i] < '!' || name[i] > '~' || i == netproto.MaxNodeIDBytes {
			return fmt.Errorf("peer: %q cannot be a node's name: give it at most %d printable ASCII characters without blanks",
				name, netproto.MaxNodeIDBytes)
		}
	}
	return nil
}
