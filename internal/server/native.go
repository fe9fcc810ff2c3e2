package server

import (
	"context"
	"net"

	"penstock/internal/descriptors"
	"penstock/internal/node"
	"penstock/internal/server/handshakes"
	"penstock/internal/server/native"
)

// listenNative makes the server of native clients, unless it is off. They use the certificates, tokens and audit of
// NSQ's clients, and topics are created for them in the same way. Once there is a certificate, they must use TLS:
// unlike NSQ's protocol, theirs has no step from plain to TLS.
func (s *Server) listenNative() error {
	if s.opts.NativeAddress == Off {
		return nil
	}
	ln, err := s.opts.Front.open("native clients", s.opts.NativeAddress)
	if err != nil {
		return err
	}
	o := native.Options{
		Listener: ln, Auth: s.auth, Logger: s.opts.Logger, Answers: s.flusher, Known: s.known,
		Topic: func(ctx context.Context, token, name string) (*node.Topic, bool, error) { // s.lookups is not there yet
			return s.lookups.Topic(ctx, name, func() (string, error) { return token, nil })
		},
		Stored:  s.publishes.Native.Observe,
		Refused: s.audit.Refused, Created: s.audit.Changed,
	}
	s.opts.limitNative(&o)
	if s.certs != nil {
		o.Secure = func(ln net.Listener) net.Listener { return handshakes.Listener(ln, s.certs.nativeOuter) }
		o.Busy = s.certs.gate.Refused
	}
	if s.native, err = native.Listen(s.engine, o); err != nil {
		_ = ln.Close() // nothing was accepted
	}
	return err
}

// limitNative puts into n the limits that native clients have, too.
func (o *Options) limitNative(n *native.Options) {
	files := descriptors.Limit()
	n.MaxConnections, n.MaxStrangers = o.MaxConnections, unproven(o.MaxStrangers, files)
	n.MaxStrangerBytes, n.StrangerTime = o.MaxStrangerBytes, o.StrangerTime
	n.HandshakeTimeout, n.MaxHandshakes = o.HandshakeTimeout, unproven(o.MaxHandshakes, files)
	n.MaxConnInFlightBytes = o.MaxConnInFlightBytes
}

// NativeAddr returns the address to which native clients connect, or nil if it is off.
func (s *Server) NativeAddr() net.Addr {
	if s.native == nil {
		return nil
	}
	return s.native.Addr()
}

func (s *Server) serveNative() error {
	if s.native == nil {
		return nil
	}
	return s.native.Serve()
}

func (s *Server) shutDownNative(ctx context.Context) {
	if s.native != nil {
		_ = s.native.Shutdown(ctx) // its error is that of ctx
	}
}
