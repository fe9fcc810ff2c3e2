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
	return start(ctx, nc, &o, func() (Hello, Version, error) {
		if err := writeHello(nc, TypeHello, StatusOK, &o.Hello); err != nil {
			return Hello{}, 0, err
		}
		peer, status, err := readHello(nc, TypeHelloAck)
		if err != nil {
			return Hello{}, 0, err
		}
		if status != StatusOK {
			return Hello{}, 0, &RefusedError{Status: status, Text: peer.Text, Peer: peer}
		}
		if err := o.admit(&peer); err != nil {
			return Hello{}, 0, err
		}
		version, err := negotiate(&o.Hello, &peer)
		if err == nil && version != peer.Chosen {
			err = fmt.Errorf("%w: the peer chose version %d where %d is right", ErrInvalid, peer.Chosen, version)
		}
		return peer, version, err
	})
}

// Accept waits for the Hello of the side that connected, answers it and starts the connection. From then on Accept owns
// nc, and closes nc if it returns an error, after telling the peer the reason if the peer can still be told. The errors
// are those of Connect.
func Accept(ctx context.Context, nc net.Conn, options Options) (*Conn, error) {
	o := options.withDefaults()
	return start(ctx, nc, &o, func() (Hello, Version, error) {
		answer := o.Hello
		peer, _, err := readHello(nc, TypeHello)
		if err == nil {
			err = o.admit(&peer)
		}
		if err == nil {
			answer.Chosen, err = negotiate(&o.Hello, &peer)
		}
		if err != nil {
			// A peer that is gone or too slow is not told anything. Whether the refusal reaches the peer does not
			// matter.
			if !errors.Is(err, ErrPeerGone) && !errors.Is(err, ErrPeerSlow) {
				answer.Text = textOf(err)
				_ = writeHello(nc, TypeHelloAck, statusOf(err), &answer)
			}
			return peer, 0, err
		}
		return peer, answer.Chosen, writeHello(nc, TypeHelloAck, StatusOK, &answer)
	})
}

// start runs a handshake under its deadline and ctx, then starts the connection. It closes nc on an error.
func start(ctx context.Context, nc net.Conn, o *Options, shake func() (Hello, Version, error)) (*Conn, error) {
	if err := nc.SetDeadline(time.Now().Add(o.HandshakeTimeout)); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("%w: %w", ErrPeerGone, err)
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = nc.SetDeadline(time.Unix(1, 0))
	})
	peer, version, err := shake()
	if !stop() {
		<-ended // else that function might still set its deadline at any moment
		if err == nil {
			farewell(nc)
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
	return newConn(nc, o, peer, version), nil
}

// farewell says Goodbye to a peer for which the connection is open already, because the handshake was complete when ctx
// ended: the peer must not take the end for a failure.
func farewell(nc net.Conn) {
	d := new(drain)
	d.control(TypeGoodbye, StatusClosed, 0, "closed")
	_ = nc.SetDeadline(time.Now().Add(minAcceptPause))
	_ = d.writeTo(nc)
	d.reset()
}

// admit checks everything in the peer's Hello except the versions.
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

func writeHello(nc net.Conn, typ Type, status Status, hello *Hello) error {
	p := hello.AppendTo(make([]byte, HeaderBytes, HeaderBytes+helloFixedBytes+len(hello.NodeID)+len(hello.Text)))
	h := Header{
		Type: typ, Status: status, PayloadBytes: uint32(len(p) - HeaderBytes),
		PayloadCRC: crc32.Checksum(p[HeaderBytes:], castagnoli),
	}
	h.Marshal(p)
	if _, err := nc.Write(p); err != nil {
		return handshakeError(err)
	}
	return nil
}

// readHello reads one frame and not a byte more. It allocates nothing for a size that the peer claims before it has
// checked the claim.
func readHello(nc net.Conn, typ Type) (Hello, Status, error) {
	var fixed [HeaderBytes]byte
	if _, err := io.ReadFull(nc, fixed[:]); err != nil {
		return Hello{}, 0, handshakeError(err)
	}
	h, err := ParseHeader(fixed[:])
	if err != nil {
		return Hello{}, 0, err
	}
	if h.Type != typ {
		return Hello{}, 0, fmt.Errorf("%w: a %v where a %v must come", ErrInvalid, h.Type, typ)
	}
	if h.PayloadBytes > MaxHelloBytes-HeaderBytes {
		return Hello{}, 0, fmt.Errorf("%w: a %v of %d bytes, at most %d are allowed",
			ErrTooBig, typ, h.PayloadBytes, MaxHelloBytes-HeaderBytes)
	}
	payload := make([]byte, h.PayloadBytes)
	if _, err := io.ReadFull(nc, payload); err != nil {
		return Hello{}, 0, handshakeError(err)
	}
	if err := h.checkPayload(payload); err != nil {
		return Hello{}, 0, err
	}
	hello, err := ParseHello(payload)
	return hello, h.Status, err
}

func handshakeError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: the handshake was not over in time", ErrPeerSlow)
	}
	return fmt.Errorf("%w: during the handshake: %w", ErrPeerGone, err)
}
