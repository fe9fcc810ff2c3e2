package peer

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/google/uuid"

	"penstock/netproto"
)

// Answer says who is at an address, see Ask.
type Answer struct {
	Nobody bool      // the host refuses connections there: no process listens
	Boot   uuid.UUID // of the node's process that answers; zero: none does, or it does not say
}

// Ask finds out which process of node o.Self.Name answers at an address of the cluster. A process that wants to
// register uses it, before it has a Net of its own. It takes ProbeTimeout at most. Of o it uses Self, Cluster and
// Trust: the process there has to prove that it belongs to the cluster, as for any connection.
//
// A node takes the handshake of another process of its own name only to be recognized by it: it hangs up then, and logs
// that a second process tried (session.admit). A node of an older version refuses the handshake without saying who it
// is, so it counts as silent.
func Ask(ctx context.Context, o Options, address string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	nc, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return Answer{Nobody: errors.Is(err, syscall.ECONNREFUSED)}, err
	}
	c := o.forAsking()
	n := &Net{o: c}
	if nc, err = n.verified(ctx, nc, address); err != nil {
		return Answer{}, err
	}
	cert := certificateOf(nc)
	conn, err := netproto.Connect(ctx, nc, c.Conn)
	if err != nil {
		return Answer{}, err
	}
	defer func() { conn.Abort(errAsked); <-conn.Done() }()
	peer := conn.Peer()
	if peer.Role != netproto.RoleNode || peer.NodeID != c.Self.Name {
		return Answer{}, fmt.Errorf("peer: node %q answers at %s", peer.NodeID, address)
	}
	if c.Trust.Names == NamesRequired {
		if err := c.Trust.Names.speaks(cert, peer.NodeID, nil); err != nil {
			return Answer{}, err
		}
	}
	return Answer{Boot: uuid.UUID(peer.Boot)}, nil
}

// forAsking returns the options of a connection that is only there for its handshake.
func (o *Options) forAsking() Options {
	c := *o
	c.Self.Store = c.Self.Boot // no node expects this store, so another node at the address refuses the connection
	c.setConn()
	c.Conn.Handler = mute{}
	return c
}

var errAsked = errors.New("peer: it was asked who it is")

// mute takes no frames.
type mute struct{}

func (mute) Frames(*netproto.Conn, []netproto.Received) error { return errAsked }
func (mute) Closed(*netproto.Conn, error)                     {}
