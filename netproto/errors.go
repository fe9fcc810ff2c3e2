package netproto

import (
	"errors"
	"fmt"
)

// Errors that end a connection, or that Send returns. Test them with errors.Is. Whatever ended a connection, the
// outcome of frames that the peer has not answered is unknown.
var (
	// ErrCorrupt: bytes from the peer are not what it sent, or not frames at all. Connect again.
	ErrCorrupt = errors.New("netproto: frame is damaged")
	// ErrInvalid: an intact frame breaks the protocol. Connecting again does not help.
	ErrInvalid = errors.New("netproto: frame breaks the protocol")
	// ErrTooBig: a frame is longer than its receiver accepts. Send it in parts.
	ErrTooBig = errors.New("netproto: frame is too big")
	// ErrVersion: no version or required feature in common. Upgrade the older side.
	ErrVersion = errors.New("netproto: no common protocol version")
	// ErrWrongCluster: the peer belongs to another cluster. Correct the address.
	ErrWrongCluster = errors.New("netproto: the peer belongs to another cluster")
	// ErrUnproven: one side does not prove that it has the secret that the other demands. Give both the same secret.
	ErrUnproven = errors.New("netproto: the secret was not proven")
	// ErrRefused: one side did not accept the other's Hello; the message has the reason.
	ErrRefused = errors.New("netproto: the connection was refused")
	// ErrQueueFull: TrySend found no room; the frame was not taken.
	ErrQueueFull = errors.New("netproto: the send queue is full; the frame was not taken")
	// ErrClosed: this side closed the connection; the frame was not taken.
	ErrClosed = errors.New("netproto: the connection is closed")
	// ErrGoodbye: the peer ended the connection in order. See GoodbyeError.
	ErrGoodbye = errors.New("netproto: the peer said goodbye")
	// ErrPeerGone: the connection broke, or the peer's process ended. Connect again.
	ErrPeerGone = errors.New("netproto: the connection to the peer broke")
	// ErrPeerSilent: the peer sent nothing for SilenceTimeout although it was pinged.
	ErrPeerSilent = errors.New("netproto: the peer is silent")
	// ErrPeerSlow: the peer took too long for one frame or for the handshake, or does not read what it is sent.
	ErrPeerSlow = errors.New("netproto: the peer is too slow")
)

// GoodbyeError says how the peer ended the connection. errors.Is(err, ErrGoodbye) holds.
type GoodbyeError struct {
	Status Status
	Text   string // at most MaxTextBytes, printable
}

func (e *GoodbyeError) Error() string {
	return fmt.Sprintf("%v: %v: %s", ErrGoodbye, e.Status, e.Text)
}

func (e *GoodbyeError) Is(target error) bool { return target == ErrGoodbye }

// RefusedError is the status and text with which a Hello was refused, by the peer or by this side. errors.Is(err,
// ErrRefused) holds, and for the statuses of ErrVersion, ErrWrongCluster and ErrUnproven those errors match, too. An
// error of Options.Admit that wraps a RefusedError may say more: the peer is told only Text.
type RefusedError struct {
	Status Status
	Text   string // at most MaxTextBytes, printable
	Peer   Hello  // the peer's Hello; of one that refused, only its versions and limits
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v: %v: %s", ErrRefused, e.Status, e.Text)
}

func (e *RefusedError) Is(target error) bool {
	return target == ErrRefused ||
		target == ErrVersion && e.Status == StatusVersionMismatch ||
		target == ErrWrongCluster && e.Status == StatusWrongCluster ||
		target == ErrUnproven && e.Status == StatusUnproven
}

// statusOf is the status that tells the peer why err ends the connection.
func statusOf(err error) Status {
	var refused *RefusedError
	switch {
	case errors.As(err, &refused):
		return refused.Status
	case errors.Is(err, ErrCorrupt):
		return StatusCorrupt
	case errors.Is(err, ErrTooBig):
		return StatusTooBig
	case errors.Is(err, ErrVersion):
		return StatusVersionMismatch
	case errors.Is(err, ErrWrongCluster):
		return StatusWrongCluster
	case errors.Is(err, ErrUnproven):
		return StatusUnproven
	case errors.Is(err, ErrInvalid):
		return StatusRejected
	case errors.Is(err, ErrClosed), errors.Is(err, ErrPeerSilent), errors.Is(err, ErrPeerSlow):
		return StatusClosed
	}
	return StatusInternal
}
