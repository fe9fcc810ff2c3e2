package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"penstock/netproto"
)

// errTLS is in the error of a connection whose TLS handshake failed.
var errTLS = errors.New("peer: the TLS handshake failed")

// secured returns an accepted socket behind TLS, if nodes use it. On an error it closes nc.
func (n *Net) secured(nc net.Conn, o *netproto.Options) (net.Conn, error) {
	if n.o.Trust.TLS == nil {
		return nc, nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.o.Conn.HandshakeTimeout)
	defer cancel()
	config, _ := n.o.Trust.TLS()
	conn := tls.Server(nc, config)
	err := conn.HandshakeContext(ctx)
	if err == nil {
		return conn, nil
	}
	var other tls.RecordHeaderError
	switch {
	case errors.As(err, &other) && other.Conn != nil:
		// A node without TLS can still be told, in its own language.
		netproto.Refuse(nc, *o, netproto.StatusUnproven,
			"nodes of this cluster speak TLS with each other; give every node its certificate")
	case errors.Is(err, io.EOF) && n.ctx.Err() == nil:
		err = fmt.Errorf("%w: %w", netproto.ErrPeerGone, err) // a probe
	case n.ctx.Err() != nil:
		err = context.Canceled
	}
	_ = nc.Close()
	if errors.Is(err, netproto.ErrPeerGone) || errors.Is(err, context.Canceled) {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", errTLS, err)
}

// verified returns a socket to a node behind TLS, if nodes use it: the node has shown a certificate for the host that
// was dialed. On an error it closes nc.
func (n *Net) verified(ctx context.Context, nc net.Conn, address string) (net.Conn, error) {
	if n.o.Trust.TLS == nil {
		return nc, nil
	}
	_, config := n.o.Trust.TLS()
	if host, _, err := net.SplitHostPort(address); err == nil {
		config.ServerName = host
	}
	conn := tls.Client(nc, config)
	err := conn.HandshakeContext(ctx)
	if err == nil {
		return conn, nil
	}
	_ = nc.Close()
	if other := new(tls.RecordHeaderError); errors.As(err, other) {
		return nil, fmt.Errorf("%w: the node does not speak TLS; give every node its certificate: %w", errTLS, err)
	}
	return nil, fmt.Errorf("%w: %w", errTLS, err)
}
