package client

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock/netproto"
)

// Errors, tested with errors.Is. Each says what happened, what became of the data, and what to do. One error may match
// several: an ErrFenced that also matches ErrUnknown leaves open whether the message was stored before.
var (
	// ErrBuffered: TryProduce found no room.
	ErrBuffered = errors.New("client: as many bytes as MaxBufferedBytes allows wait to be stored; this message was not " +
		"taken and will not be stored: produce it again later, or raise the limit")
	// ErrUnknown: the outcome is open.
	ErrUnknown = errors.New("client: no answer came in time; the message may be stored, or may still be: look for it " +
		"before you produce it again, or accept that it may be there twice")
	// ErrFenced: another program has opened a producer with the same name.
	ErrFenced = errors.New("client: a newer producer with the same name took over; the message was not stored: end " +
		"this program, or give each program a name of its own")
	// ErrTooLarge: the message exceeds a limit of the client or of the node.
	ErrTooLarge = errors.New("client: the message is too large; it was not stored: divide it, or raise the limit that " +
		"it exceeds")
	// ErrUnauthorized: the node refused the token, or what the token allows.
	ErrUnauthorized = errors.New("client: the token is not valid or does not allow this; nothing was stored: use a " +
		"token with the permission")
	// ErrNoLeader: no node could take the message in time.
	ErrNoLeader = errors.New("client: the partition's leader could not be reached or had no room in time; the message " +
		"was not stored: produce it again when the cluster is healthy")
	// ErrSequence: the leader has other sequence numbers of this producer.
	ErrSequence = errors.New("client: the leader expects another sequence number of this producer; the message was not " +
		"stored: check that no other program uses the producer's name, then produce it again")
	// ErrStopped: the producer has StopAtFailure, and an earlier message failed.
	ErrStopped = errors.New("client: an earlier message of the partition was not stored, or that is unknown, and the " +
		"producer stops there; this message was not stored: open a new producer, which says what was stored last")
	// ErrTooManyProducers: the name cannot be opened, because the partition knows as many as it may.
	ErrTooManyProducers = errors.New("client: too many producers' names are in use at the partition, and this one is " +
		"new there; the message was not stored: use fewer names, or remove those that no program uses any more")
	// ErrNoTopic: the topic does not exist (any more). A topic that is deleted and created again is another one: what was
	// opened before goes on returning ErrNoTopic.
	ErrNoTopic = errors.New("client: there is no such topic or partition; nothing was stored: create the topic, or " +
		"correct the name")
	// ErrRefused: the node will never store what it was sent.
	ErrRefused = errors.New("client: the message was refused; it was not stored: change it as the text says")
	// ErrClosed: the producer, the reader or the client is closed.
	ErrClosed = errors.New("client: closed; the message was not stored: open a new one")
	// ErrNotInFlight: a delivery was finished, requeued or touched too late.
	ErrNotInFlight = errors.New("client: the message is not in flight to this consumer: it was finished or requeued " +
		"before, its time was over, or its leader was lost; unless it was finished, it is delivered again: make handling " +
		"it twice harmless, or handle messages faster")
	// ErrDamaged: a reader got bytes that are not what was stored, again and again.
	ErrDamaged = errors.New("client: stored messages arrived damaged; nothing of them was returned: check the disks of " +
		"the partition's replicas")
)

// consumerError is an error of a consumer or a reader that matches one of the errors above, whose text is about
// producing.
type consumerError struct {
	is     error
	text   string
	reason error // or nil
}

func (e *consumerError) Error() string {
	if e.reason == nil {
		return e.text
	}
	return e.text + ": " + e.reason.Error()
}

func (e *consumerError) Is(target error) bool { return target == e.is }

func (e *consumerError) Unwrap() error { return e.reason }

// errUnconfirmed: a consumer does not know whether what it finished is stored.
var errUnconfirmed = &consumerError{is: ErrUnknown, text: "client: a leader was lost before it confirmed what was " +
	"finished or requeued; such messages may be delivered again: make handling them twice harmless"}

// consumerRefused is why a node does not serve a consumer.
func consumerRefused(s netproto.Status, text, address string) error {
	reason := &StatusError{s, text}
	if s == netproto.StatusUnproven {
		return &consumerError{ErrUnauthorized, "client: the token is not valid or does not allow to consume the channel; " +
			"nothing is delivered: use a token with the permission", reason}
	}
	return &consumerError{ErrRefused, "client: the node at " + address + " refused the consumer; nothing is delivered " +
		"from there, and it is tried again", reason}
}

var errNoAnswer = errors.New("the leader did not answer in time")

// TrimmedError says that retention has removed messages that a reader was to return. First is the oldest message that
// is kept; the reader goes on there when Next is called again.
type TrimmedError struct{ First ID }

func (e *TrimmedError) Error() string {
	return fmt.Sprintf("client: messages before %v were removed by retention and cannot be read; call Next again to go "+
		"on at that message, or stop if none may be missed", e.First)
}

// AnnouncedError says that a node cannot be reached where the cluster says that it is. It matches what has failed.
type AnnouncedError struct {
	Node    string // its name
	Address string // host:port that is announced
	ToldBy  string // host:port of the node that said it
	Err     error
}

func (e *AnnouncedError) Error() string {
	what := "which cannot be reached from here: " + e.Err.Error()
	if wrong, ok := errors.AsType[x509.HostnameError](e.Err); ok {
		what = "whose certificate is for " + namesOf(wrong.Certificate) + " and not for " + wrong.Host
	}
	return fmt.Sprintf("client: node %s announces %s (told by the node at %s), %s: let it announce what clients can "+
		"dial, with --broadcast-address and a certificate for that, or say where to dial what it announces "+
		"(Options.Addresses, --dial of a command)", e.Node, e.Address, e.ToldBy, what)
}

func (e *AnnouncedError) Unwrap() error { return e.Err }

// namesOf lists the hosts for which a certificate is valid.
func namesOf(c *x509.Certificate) string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no host"
	}
	return strings.Join(names, ", ")
}

// because is err, with the reason if there is one. It matches both.
func because(err, reason error) error {
	if reason == nil || errors.Is(err, reason) {
		return err
	}
	return fmt.Errorf("%w: %w", err, reason)
}

// endedBy returns the error of a call whose context has ended. Its text names heldUp, the newest error of the attempts
// for which the call waited, if there is one. errors.Is finds only the context's error in it, because the attempts go
// on.
func endedBy(ctx context.Context, heldUp error) error {
	if heldUp == nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %v", context.Cause(ctx), heldUp)
}

// unreached says that a node cannot be reached, and why the newest attempt failed. It returns nil while the first
// attempt goes on.
func unreached(address string, attempt error) error {
	if attempt == nil {
		return nil
	}
	return fmt.Errorf("client: the node at %s cannot be reached, and it is tried again: %w", address, attempt)
}

// StatusError is what a node answered, in its words.
type StatusError struct {
	Status netproto.Status
	Text   string // may be empty
}

func (e *StatusError) Error() string {
	if e.Text == "" {
		return "the node answered " + e.Status.String()
	}
	return fmt.Sprintf("the node answered %v: %s", e.Status, e.Text)
}

// meaning is what a status says about the request that it answers.
func meaning(s netproto.Status) verdict {
	switch s {
	case netproto.StatusOK:
		return verdictStored
	case netproto.StatusNotLeader, netproto.StatusNewEpoch, netproto.StatusFull, netproto.StatusCorrupt,
		netproto.StatusClosed, netproto.StatusOverloaded:
		return verdictAgain
	case netproto.StatusGap:
		return verdictGap
	case netproto.StatusDiverged:
		return verdictForgot
	case netproto.StatusOldEpoch:
		return verdictFenced
	case netproto.StatusRejected, netproto.StatusTooBig, netproto.StatusUnproven, netproto.StatusVersionMismatch,
		netproto.StatusWrongCluster:
		return verdictRefused
	}
	return verdictPerhaps
}

// topicRefused is why the cluster does not show this client a topic.
func topicRefused(s netproto.Status, topic string) error {
	err := errorOf(s, "topic "+topic)
	if errors.Is(err, ErrUnauthorized) {
		return err
	}
	return &topicError{topic: topic, reason: err}
}

// topicRemade is why what was opened for a topic ends when there is another topic of that name.
func topicRemade(topic string) error { return &topicError{topic: topic, remade: true} }

// topicError is ErrNoTopic with the topic's name.
type topicError struct {
	topic  string
	reason error // or nil
	remade bool
}

func (e *topicError) Error() string {
	if e.remade {
		return "client: topic " + e.topic + " was deleted, and another one has its name now; nothing was stored or read: " +
			"open a new producer, consumer or reader"
	}
	return "client: there is no topic " + e.topic + "; nothing was stored or read: create the topic, or correct the name"
}

func (e *topicError) Is(target error) bool { return target == ErrNoTopic }

func (e *topicError) Unwrap() error { return e.reason }

// errorOf is the error for an answer that is not OK.
func errorOf(s netproto.Status, text string) error {
	err := error(&StatusError{s, text})
	switch s {
	case netproto.StatusUnproven:
		return because(ErrUnauthorized, err)
	case netproto.StatusTooBig:
		return because(ErrTooLarge, err)
	case netproto.StatusRejected, netproto.StatusVersionMismatch, netproto.StatusWrongCluster:
		return because(ErrRefused, err)
	}
	return err
}

// heldError is ErrFenced of a name that cannot be opened, because a later program holds it.
type heldError struct {
	tenure uint64 // of that program; 0: the node does not say it
	why    error
}

func (e *heldError) Error() string        { return because(ErrFenced, e.why).Error() }
func (e *heldError) Is(target error) bool { return target == ErrFenced }
func (e *heldError) Unwrap() error        { return e.why }
