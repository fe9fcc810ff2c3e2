package netproto

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"time"
)

// Connect sends Hello on nc, waits for the answer and starts the connection. From then on Connect owns nc, and closes
// nc if it returns an error: a RefusedError if the peer refused, ErrVersion, ErrWrongCluster, ErrPeerSlow, ErrPeerGone,
// ErrCorrupt, ErrInvalid, ErrTooBig, or ctx's error.
func Connect(ctx context.Context, nc net.Conn, options Options) (*Conn, error) {
	o := options.withDefaults()
	return start(ctx, nc, &o, func() (Hello, error) { return o.connect(nc) })
}

func (o *Options) connect(nc net.Conn) (Hello, error) {
	self, secrets, nonce := o.Hello, o.secrets(), []byte(nil)
	if len(secrets) > 0 {
		self.demandProof()
	}
	sent := self.AppendTo(nil)
	if err := writeFrame(nc, TypeHello, StatusOK, sent); err != nil {
		return Hello{}, err
	}
	if len(secrets) > 0 {
		var err error
		if nonce, err = prove(nc, &secrets[0], sent); err != nil {
			return Hello{}, err
		}
	}
	peer, status, ack, err := readHello(nc, TypeHelloAck)
	switch {
	case err != nil:
		return Hello{}, err
	case status != StatusOK:
		return Hello{}, &RefusedError{Status: status, Text: peer.Text, Peer: peer}
	case len(secrets) > 0:
		err = checkAck(secrets, &peer, sent, nonce, ack)
	}
	if err != nil {
		return Hello{}, err
	}
	if err := o.admit(&peer); err != nil {
		farewell(nc, statusOf(err), textOf(err))
		return Hello{}, err
	}
	version, err := negotiate(&self, &peer)
	if err == nil && version != peer.Chosen {
		err = fmt.Errorf("%w: the peer chose version %d where %d is right", ErrInvalid, peer.Chosen, version)
	}
	return peer, err
}

// Accept waits for the Hello of the side that connected, answers it and starts the connection. From then on Accept owns
// nc, and closes nc if it returns an error, after telling the peer the reason if the peer can still be told. The errors
// are those of Connect.
func Accept(ctx context.Context, nc net.Conn, options Options) (*Conn, error) {
	o := options.withDefaults()
	return start(ctx, nc, &o, func() (Hello, error) {
		peer, answer, err := o.accept(nc)
		if err == nil {
			return peer, writeFrame(nc, TypeHelloAck, StatusOK, answer)
		}
		// A peer that is gone or too slow is not told anything. Whether the refusal reaches the peer does not matter.
		if !errors.Is(err, ErrPeerGone) && !errors.Is(err, ErrPeerSlow) {
			refusal := o.Hello.anonymous(textOf(err))
			_ = writeFrame(nc, TypeHelloAck, statusOf(err), refusal.AppendTo(nil))
		}
		return peer, err
	})
}

// accept decides about the side that connected, and returns the payload of the HelloAck for it.
func (o *Options) accept(nc net.Conn) (peer Hello, answer []byte, err error) {
	peer, _, hello, err := readHello(nc, TypeHello)
	if err != nil {
		return peer, nil, err
	}
	self, secrets, nonce := o.Hello, o.secrets(), []byte(nil)
	switch {
	case len(secrets) > 0:
		self.demandProof()
		nonce, err = challenge(nc, secrets, &peer, hello)
	case peer.Required&FeatureProof != 0:
		err = unproven("the peer requires the cluster's secret, and this side has none; give every node the same secret",
			&peer)
	}
	if err == nil {
		err = o.admit(&peer)
	}
	if err == nil {
		self.Chosen, err = negotiate(&self, &peer)
	}
	if err != nil {
		return peer, nil, err
	}
	return peer, sealAck(&self, secrets, hello, nonce), nil
}

// start runs a handshake under its deadline and ctx, then starts the connection. It closes nc on an error. If ctx ends
// with a cause that is a RefusedError, the peer is told it.
func start(ctx context.Context, nc net.Conn, o *Options, shake func() (Hello, error)) (*Conn, error) {
	if err := nc.SetDeadline(time.Now().Add(o.HandshakeTimeout)); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("%w: %w", ErrPeerGone, err)
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = nc.SetDeadline(time.Unix(1, 0))
	})
	peer, err := shake()
	if !stop() {
		<-ended // else that function might still set its deadline at any moment
		var refused *RefusedError
		if err == nil {
			farewell(nc, StatusClosed, "closed")
		} else if errors.As(context.Cause(ctx), &refused) {
			refuse(nc, o, refused.Status, refused.Text)
		}
		err = context.Cause(ctx)
	}
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	if o.HandlerFor != nil {
		o.Handler = o.HandlerFor(nc)
	}
	return newConn(nc, o, peer), nil
}

// farewell says Goodbye to a peer for which the connection is open already: because the handshake was complete when ctx
// ended, and the peer must not take the end for a failure; or because this side, which has connected, does not admit
// the peer, which hears why.
func farewell(nc net.Conn, status Status, text string) {
	d := new(drain)
	d.control(TypeGoodbye, status, 0, text)
	_ = nc.SetDeadline(time.Now().Add(minAcceptPause))
	_ = d.writeTo(nc)
	d.reset()
}

// admit checks everything in the peer's Hello except the versions.
//
// An error that wraps a RefusedError stays as it is: it may say more here than the peer is told.
func (o *Options) admit(peer *Hello) error {
	if err := sameCluster(&o.Hello, peer); err != nil {
		return err
	}
	if o.Admit == nil {
		return nil
	}
	err := o.Admit(peer)
	var refused *RefusedError
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return &RefusedError{Status: StatusRejected, Text: textOf(err), Peer: *peer}
}

// textOf is the text that tells the peer about err.
func textOf(err error) string {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return printable([]byte(refused.Text))
	}
	return printable([]byte(err.Error()))
}

// writeFrame writes one frame of the handshake.
func writeFrame(nc net.Conn, typ Type, status Status, payload []byte) error {
	h := Header{
		Type: typ, Status: status, PayloadBytes: uint32(len(payload)), PayloadCRC: crc32.Checksum(payload, castagnoli),
	}
	p := make([]byte, HeaderBytes, HeaderBytes+len(payload))
	h.Marshal(p)
	if _, err := nc.Write(append(p, payload...)); err != nil {
		return handshakeError(err)
	}
	return nil
}

// readFrame reads one frame of the handshake and not a byte more. It allocates nothing for a size that the peer claims
// before it has checked the claim.
func readFrame(nc net.Conn) (Header, []byte, error) {
	var fixed [HeaderBytes]byte
	if _, err := io.ReadFull(nc, fixed[:]); err != nil {
		return Header{}, nil, handshakeError(err)
	}
	h, err := ParseHeader(fixed[:])
	if err != nil {
		if fixed[0] == tlsHandshake && fixed[1] == tlsMajor {
			err = fmt.Errorf("%w: the peer speaks TLS, and this side does not; give every node TLS, or none", ErrInvalid)
		}
		return Header{}, nil, err
	}
	if h.PayloadBytes > MaxHelloBytes-HeaderBytes {
		return Header{}, nil, fmt.Errorf("%w: a %v of %d bytes, at most %d are allowed",
			ErrTooBig, h.Type, h.PayloadBytes, MaxHelloBytes-HeaderBytes)
	}
	payload := make([]byte, h.PayloadBytes)
	if _, err := io.ReadFull(nc, payload); err != nil {
		return Header{}, nil, handshakeError(err)
	}
	return h, payload, h.checkPayload(payload)
}

// The first two bytes of a TLS connection.
const tlsHandshake, tlsMajor = 0x16, 0x03

// readHello reads a Hello or HelloAck, and returns its payload, too.
func readHello(nc net.Conn, typ Type) (Hello, Status, []byte, error) {
	h, payload, err := readFrame(nc)
	if err == nil && h.Type != typ {
		err = fmt.Errorf("%w: a %v where a %v must come", ErrInvalid, h.Type, typ)
	}
	if err != nil {
		return Hello{}, 0, nil, err
	}
	hello, err := ParseHello(payload)
	return hello, h.Status, payload, err
}

func handshakeError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: the handshake was not over in time", ErrPeerSlow)
	}
	return fmt.Errorf("%w: during the handshake: %w", ErrPeerGone, err)
}
