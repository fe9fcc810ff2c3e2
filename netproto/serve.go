package netproto

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/strangers"
)

const (
	// After the listener fails (mostly because no file descriptors are left), Serve tries again after a pause between
	// these.
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// ErrTooManyHandshakes says that Serve refused a connection because as many as may be are in their handshake.
var ErrTooManyHandshakes = errors.New("netproto: too many handshakes at once")

// Serve accepts connections from ln: as many at a time as maxConnCount says when one comes, of which at most
// Options.MaxHandshakeCount are in their handshake. Beyond maxConnCount, a new connection gets StatusOverloaded; beyond
// MaxHandshakeCount, the oldest one that is in its handshake, of the address that has the most, so that connections
// that say nothing keep nobody out. When ctx ends, Serve closes ln, closes all connections in order, and returns nil
// after they have ended. An error means that the listener broke; in that case, too, all connections have ended. failed,
// if not nil, is called with the reason when a connection is refused or its handshake fails; several goroutines may
// call it at once, and it must not block.
func Serve(
	ctx context.Context, ln net.Listener, options Options, maxConnCount func() int,
	failed func(remote net.Addr, err error),
) error {
	if failed == nil {
		failed = func(net.Addr, error) {}
	}
	o := options.withDefaults()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var all sync.WaitGroup
	unproven := strangers.New(o.MaxHandshakeCount)
	var open atomic.Int64
	for pause := minAcceptPause; ; {
		nc, err := ln.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) && pauseFor(ctx, &pause) {
				continue
			}
			ended := ctx.Err() != nil
			cancel()
			_ = ln.Close()
			all.Wait()
			if ended {
				return nil
			}
			return fmt.Errorf("netproto: no more connections are accepted, restart the listener: %w", err)
		}
		pause = minAcceptPause
		if most := maxConnCount(); open.Load() >= int64(most) {
			full := overload(fmt.Sprintf("%d connections are open, the most that the port may have (max-connections)",
				most))
			refuse(nc, &o, full.Status, full.Text)
			failed(nc.RemoteAddr(), full)
			continue
		}
		open.Add(1)
		own := o
		if o.Renew != nil {
			o.Renew(&own)
			unproven.Limit(own.MaxHandshakeCount)
		}
		shaking, giveUp := context.WithCancelCause(ctx)
		member := unproven.Stranger(nc.RemoteAddr(), func() { giveUp(crowded(unproven.Most())) })
		member.Enter()
		all.Go(func() {
			defer open.Add(-1)
			defer giveUp(nil)
			c, err := Accept(shaking, nc, own)
			member.Leave()
			if err != nil {
				failed(nc.RemoteAddr(), err)
				return
			}
			select {
			case <-ctx.Done():
				c.Close()
			case <-c.Done():
			}
		})
	}
}

// pauseFor waits, longer each time, and reports whether ctx is still alive.
func pauseFor(ctx context.Context, pause *time.Duration) bool {
	timer := time.NewTimer(*pause)
	defer timer.Stop()
	*pause = min(2**pause, maxAcceptPause)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// crowded is why the oldest handshake is given up.
func crowded(most int) error {
	return fmt.Errorf("%w: %w", ErrTooManyHandshakes, overload(fmt.Sprintf("%d handshakes are under way, the most at "+
		"a time (max-tls-handshakes), and this was the oldest of its address", most)))
}

func overload(what string) *RefusedError {
	return &RefusedError{Status: StatusOverloaded, Text: what + "; try again later, or another node"}
}

// Refuse tells a peer that was not accepted why, and closes nc. The peer is told nothing about this side.
func Refuse(nc net.Conn, options Options, status Status, text string) {
	o := options.withDefaults()
	refuse(nc, &o, status, text)
}

// alertBusy is the first thing that a client reads on a connection with TLS that is refused: the record of a fatal
// alert internal_error. Nothing of the handshake was computed for it.
var alertBusy = [...]byte{21, 3, 3, 0, 2, 2, 80}

// IsBusy reports whether the other side has refused a connection because it has too much to do: with StatusOverloaded,
// or, before TLS has a secret, with the alert that says that it cannot go on for reasons of its own.
func IsBusy(err error) bool {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Status == StatusOverloaded
	}
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error" && alert.Err != nil &&
		alert.Err.Error() == tls.AlertError(alertBusy[6]).Error()
}

// refuse writes a few bytes, which fit in the empty buffer of a new socket; the deadline is for a nc that is not a
// socket.
func refuse(nc net.Conn, o *Options, status Status, text string) {
	_ = nc.SetDeadline(time.Now().Add(minAcceptPause))
	if secure, ok := nc.(*tls.Conn); ok && !secure.ConnectionState().HandshakeComplete {
		_, _ = secure.NetConn().Write(alertBusy[:])
		_ = secure.NetConn().Close()
		return
	}
	answer := o.Hello.anonymous(text)
	_ = writeFrame(nc, TypeHelloAck, status, answer.AppendTo(nil))
	_ = nc.Close()
}
