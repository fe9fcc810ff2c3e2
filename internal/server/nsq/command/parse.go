package command

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"penstock/internal/node/names"
	"penstock/internal/server/publish"
)

const (
	// MaxLineBytes bounds a command line including its LF. A longer line closes the connection without an error frame,
	// as in nsqd, whose read buffer has this size.
	MaxLineBytes = 16 << 10

	idBytes = 16 // a message id on the wire
)

// Verb identifies a command; the zero value is no command.
type Verb uint8

const (
	VerbNone Verb = iota
	VerbIdentify
	VerbAuth
	VerbSub
	VerbPub
	VerbMpub
	VerbDpub
	VerbRdy
	VerbFin
	VerbReq
	VerbTouch
	VerbCls
	VerbNop
	VerbPubExt
	VerbPubTrace
	VerbMpubExt
	VerbMpubTrace
	VerbSubAdvanced
	VerbSubOrdered
)

func (v Verb) String() string {
	return [...]string{
		"", "IDENTIFY", "AUTH", "SUB", "PUB", "MPUB", "DPUB", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP",
		"PUB_EXT", "PUB_TRACE", "MPUB_EXT", "MPUB_TRACE", "SUB_ADVANCED", "SUB_ORDERED",
	}[v]
}

// Phase is the protocol state of a connection. It only increases.
type Phase uint8

const (
	PhaseInit       Phase = iota // nothing subscribed yet
	PhaseSubscribed              // SUB was accepted
	PhaseClosing                 // CLS was accepted: no more deliveries, but FIN, REQ and TOUCH still work
)

// allowed reports whether v may be used in this phase. Publishing and NOP are always allowed.
func (p Phase) allowed(v Verb) bool {
	switch v {
	case VerbIdentify, VerbAuth, VerbSub, VerbSubAdvanced, VerbSubOrdered:
		return p == PhaseInit
	case VerbRdy, VerbFin, VerbReq, VerbTouch:
		return p != PhaseInit // RDY after CLS is accepted and ignored
	case VerbCls:
		return p == PhaseSubscribed
	}
	return true
}

// Fault is an error that ends the connection. Its text is sent as an error frame after all earlier answers. If the text
// is empty, the connection is closed without a frame.
type Fault struct{ Text string }

// NewFault returns a fault with this text; "": none.
func NewFault(text string) *Fault { return &Fault{Text: text} }

// Faultf is NewFault with fmt.Sprintf.
func Faultf(format string, args ...any) *Fault { return &Fault{Text: fmt.Sprintf(format, args...)} }

// Command is one parsed command. Its slices point into the parser's input.
type Command struct {
	Verb          Verb
	Topic         []byte
	Channel       []byte
	ID            []byte // FIN, REQ, TOUCH: 16 bytes of any value
	Number        uint64 // RDY: count; REQ, DPUB: milliseconds
	Body          []byte // PUB, DPUB: a message; MPUB: a validated batch; IDENTIFY, AUTH: the body
	PartitionArgs        // sent by youzan's clients only
}

// Limits are the bounds that the parser enforces.
type Limits struct {
	MaxMessageBytes int
	MaxBodyBytes    int
	MaxRdyCount     int
	MaxDeferMillis  uint64
}

// Parser parses commands from a byte stream. It keeps no bytes: the caller passes all bytes from the start of a command
// on, and if the command is incomplete, passes them again with more bytes. The result does not depend on how the stream
// is divided into calls.
type Parser struct {
	Limits
	Phase      Phase
	Heartbeats bool // the client accepts heartbeats; SUB requires that

	// TLSRequired: TLS has not been negotiated yet, and until then only IDENTIFY is allowed.
	TLSRequired bool

	// Stranger: the client has to prove who it is with AUTH, and has not. Until then its bodies may have Allowance more
	// bytes. Exceeded: a body had too many.
	Stranger  bool
	Allowance int
	Exceeded  bool

	// BinaryIDs: the ids in FIN, REQ and TOUCH are 16 arbitrary bytes, which may include LF and space.
	BinaryIDs bool

	// Need is, after an incomplete command, a lower bound of the command's total length.
	Need int

	topic []byte // the last valid topic name, so that a name is not validated for every message
	batch publish.BatchCheck
}

// Next parses the command at the start of b into cmd. It returns the number of bytes consumed; 0 without a fault means
// that the command is incomplete. It allocates only for a fault.
func (p *Parser) Next(b []byte, cmd *Command) (int, *Fault) {
	p.Need = len(b) + 1
	if len(b) == 0 {
		return 0, nil
	}
	first := b[0]
	if p.TLSRequired {
		first = 0 // skips the fast paths: every command is checked below
	}
	switch first {
	case 'F':
		if hasPrefix(b, "FIN ") {
			return p.withID(b, 4, VerbFin, cmd)
		}
	case 'R':
		if hasPrefix(b, "REQ ") {
			return p.withID(b, 4, VerbReq, cmd)
		}
	case 'T':
		if hasPrefix(b, "TOUCH ") {
			return p.withID(b, 6, VerbTouch, cmd)
		}
	}
	lf := bytes.IndexByte(b[:min(len(b), MaxLineBytes)], '\n')
	if lf < 0 {
		if len(b) >= MaxLineBytes {
			return 0, NewFault("")
		}
		return 0, nil
	}
	line := trimCR(b[:lf])
	name, rest, more := cut(line)
	v := lookupVerb(name)
	if p.TLSRequired && v != VerbIdentify {
		return 0, Faultf("E_INVALID cannot %s in current state (TLS required)", name)
	}
	if v == VerbNone {
		return 0, Faultf("E_INVALID invalid command %s", name)
	}
	*cmd = Command{Verb: v}
	if f := p.line(cmd, rest, more); f != nil {
		return 0, f
	}
	if !v.hasBody() {
		return lf + 1, nil
	}
	return p.body(b, lf+1, cmd)
}

// hasPrefix is bytes.HasPrefix for a constant string, without a conversion.
func hasPrefix(b []byte, s string) bool { return len(b) >= len(s) && string(b[:len(s)]) == s }

func trimCR(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		return line[:n-1]
	}
	return line
}

// cut returns the part of line before the first space, and the rest. more reports whether there was a space, so that
// another parameter follows, possibly an empty one.
func cut(line []byte) (param, rest []byte, more bool) {
	if i := bytes.IndexByte(line, ' '); i >= 0 {
		return line[:i], line[i+1:], true
	}
	return line, nil, false
}

func lookupVerb(name []byte) Verb {
	switch string(name) {
	case "PUB":
		return VerbPub
	case "MPUB":
		return VerbMpub
	case "DPUB":
		return VerbDpub
	case "FIN":
		return VerbFin
	case "REQ":
		return VerbReq
	case "TOUCH":
		return VerbTouch
	case "RDY":
		return VerbRdy
	case "NOP":
		return VerbNop
	case "SUB":
		return VerbSub
	case "CLS":
		return VerbCls
	case "IDENTIFY":
		return VerbIdentify
	case "AUTH":
		return VerbAuth
	}
	return lookupYouzanVerb(name)
}

func (v Verb) hasBody() bool {
	switch v {
	case VerbIdentify, VerbAuth, VerbPub, VerbMpub, VerbDpub:
		return true
	}
	return v.Plain() != v && !v.subscribes()
}

// line checks the parameters in nsqd's order, before looking at any body. more says that rest is a parameter, possibly
// an empty one.
func (p *Parser) line(cmd *Command, rest []byte, more bool) *Fault {
	if !p.Phase.allowed(cmd.Verb) {
		return Faultf("E_INVALID cannot %s in current state", cmd.Verb)
	}
	switch cmd.Verb {
	case VerbPub, VerbMpub, VerbPubExt, VerbPubTrace, VerbMpubExt, VerbMpubTrace:
		return p.publishLine(cmd, rest, more)
	case VerbDpub:
		return p.deferLine(cmd, rest, more)
	case VerbSub, VerbSubAdvanced, VerbSubOrdered:
		return p.subscribeLine(cmd, rest, more)
	case VerbRdy:
		return p.readyLine(cmd, rest, more)
	case VerbFin, VerbReq, VerbTouch: // those with a parameter are parsed by withID
		return Faultf("E_INVALID %s insufficient number of params", cmd.Verb)
	case VerbAuth:
		if more {
			return NewFault("E_INVALID AUTH invalid number of parameters")
		}
	}
	return nil
}

func (p *Parser) publishLine(cmd *Command, rest []byte, more bool) *Fault {
	if !more {
		return Faultf("E_INVALID %s insufficient number of parameters", cmd.Verb)
	}
	cmd.Topic, rest, more = cut(rest)
	if f := p.checkTopic(cmd); f != nil || !more {
		return f
	}
	return cmd.partitionParam(rest)
}

func (p *Parser) checkTopic(cmd *Command) *Fault {
	if bytes.Equal(cmd.Topic, p.topic) && len(cmd.Topic) > 0 {
		return nil
	}
	if !names.ValidTopic(string(cmd.Topic)) {
		sic := ""
		if cmd.Verb.Batches() {
			sic = "E_BAD_TOPIC " // nsqd repeats the code here, and clients may compare
		}
		return Faultf("E_BAD_TOPIC %s%s topic name %q is not valid", sic, cmd.Verb, cmd.Topic)
	}
	p.topic = append(p.topic[:0], cmd.Topic...)
	return nil
}

func (p *Parser) deferLine(cmd *Command, rest []byte, more bool) *Fault {
	var millis []byte
	if more {
		cmd.Topic, rest, more = cut(rest)
	}
	if !more {
		return NewFault("E_INVALID DPUB insufficient number of parameters")
	}
	millis, _, _ = cut(rest)
	if f := p.checkTopic(cmd); f != nil {
		return f
	}
	n, ok := parseUint(millis)
	if !ok {
		return Faultf("E_INVALID DPUB could not parse timeout %s", millis)
	}
	if n > p.MaxDeferMillis {
		return Faultf("E_INVALID DPUB timeout %d out of range 0-%d", n, p.MaxDeferMillis)
	}
	cmd.Number = n
	return nil
}

func (p *Parser) subscribeLine(cmd *Command, rest []byte, more bool) *Fault {
	if !p.Heartbeats {
		return NewFault("E_INVALID cannot SUB with heartbeats disabled")
	}
	if more {
		cmd.Topic, rest, more = cut(rest)
	}
	if !more {
		return NewFault("E_INVALID SUB insufficient number of parameters")
	}
	cmd.Channel, rest, more = cut(rest)
	if f := p.checkTopic(cmd); f != nil {
		return f
	}
	if !names.ValidChannel(string(cmd.Channel)) {
		return Faultf("E_BAD_CHANNEL SUB channel name %q is not valid", cmd.Channel)
	}
	if !more {
		return nil
	}
	return cmd.subscribeParams(rest)
}

func (p *Parser) readyLine(cmd *Command, rest []byte, more bool) *Fault {
	cmd.Number = 1
	if p.Phase == PhaseClosing || !more {
		return nil
	}
	count, _, _ := cut(rest)
	n, ok := parseUint(count)
	if !ok {
		return Faultf("E_INVALID RDY could not parse count %s", count)
	}
	if n > uint64(p.MaxRdyCount) {
		return Faultf("E_INVALID RDY count %d out of range 0-%d", n, p.MaxRdyCount)
	}
	cmd.Number = n
	return nil
}

// withID parses a FIN, REQ or TOUCH whose id begins at b[at].
func (p *Parser) withID(b []byte, at int, v Verb, cmd *Command) (int, *Fault) {
	end, ok := at+idBytes, len(b) >= at+idBytes
	if !p.BinaryIDs {
		end, ok = idEnd(b, at)
	}
	if !ok {
		return 0, nil
	}
	lf := bytes.IndexByte(b[end:min(len(b), max(end, MaxLineBytes))], '\n')
	if lf < 0 {
		if len(b) >= MaxLineBytes {
			return 0, NewFault("")
		}
		return 0, nil
	}
	lf += end
	*cmd = Command{Verb: v, ID: b[at:end]}
	if !p.Phase.allowed(v) {
		return 0, Faultf("E_INVALID cannot %s in current state", v)
	}
	glued, rest, more := cut(trimCR(b[end:lf]))
	if v == VerbReq && !more {
		return 0, NewFault("E_INVALID REQ insufficient number of params")
	}
	if len(cmd.ID) != idBytes || len(glued) > 0 {
		return 0, NewFault("E_INVALID invalid message ID")
	}
	if v == VerbReq {
		millis, _, _ := cut(rest)
		n, ok := parseUint(millis)
		if !ok {
			return 0, Faultf("E_INVALID REQ could not parse timeout %s", millis)
		}
		cmd.Number = n
	}
	return lf + 1, nil
}

// idEnd finds the end of the id at b[at:]: after 16 bytes, or earlier at a space or a line end. An id that has a byte
// outside printable ASCII before its first space or LF is binary, as some other NSQ servers make them. A binary id
// always has 16 bytes, which may include LF and space. ok is false if b is too short to decide.
func idEnd(b []byte, at int) (end int, ok bool) {
	binaryID := false
	for i := at; i < at+idBytes; i++ {
		if i >= len(b) {
			return 0, false
		}
		switch c := b[i]; {
		case binaryID || c > ' ' && c <= '~':
		case c == ' ' || c == '\n':
			return i, true
		case c == '\r':
			if i+1 >= len(b) {
				return 0, false
			}
			if b[i+1] == '\n' {
				return i, true
			}
			binaryID = true
		default:
			binaryID = true
		}
	}
	return at + idBytes, true
}

// parseUint parses a number that has only digits. A number beyond uint64 becomes the largest one, and an empty b is 0.
func parseUint(b []byte) (n uint64, ok bool) {
	for _, c := range b {
		d := uint64(c - '0')
		switch {
		case d > 9:
			return 0, false
		case n > (math.MaxUint64-d)/10:
			n = math.MaxUint64
		default:
			n = n*10 + d
		}
	}
	return n, true
}

// body parses the length prefix at b[at] and the body that follows.
func (p *Parser) body(b []byte, at int, cmd *Command) (int, *Fault) {
	if len(b) < at+publish.SizeBytes {
		p.Need = at + publish.SizeBytes
		return 0, nil
	}
	size := int(int32(binary.BigEndian.Uint32(b[at:])))
	if f := p.checkSize(cmd.Verb, size); f != nil {
		return 0, f
	}
	if p.Stranger && size > p.Allowance {
		return 0, p.beforeAuth(cmd.Verb, size)
	}
	at += publish.SizeBytes
	have := b[at:min(len(b), at+size)]
	if cmd.Verb.Batches() {
		if wrong := p.batch.Check(have, size, p.MaxMessageBytes, p.MaxBodyBytes); wrong != "" {
			p.batch = publish.BatchCheck{}
			return 0, NewFault(wrong)
		}
	}
	if len(have) < size {
		p.Need = at + size
		return 0, nil
	}
	p.batch = publish.BatchCheck{}
	cmd.Body = have
	if p.Stranger {
		p.Allowance -= size
	}
	return at + size, nil
}

// beforeAuth refuses a body that is too large for a client that has not proved who it is. None of the body is read.
func (p *Parser) beforeAuth(v Verb, size int) *Fault {
	p.Exceeded = true
	if v != VerbIdentify && v != VerbAuth {
		return Faultf("E_AUTH_FIRST AUTH required before %s", v)
	}
	return Faultf("E_BAD_BODY %s body too big %d > %d, the bytes that this client may still send before AUTH",
		v, size, p.Allowance)
}

func (p *Parser) checkSize(v Verb, size int) *Fault {
	switch v.Plain() {
	case VerbPub, VerbDpub:
		if size <= 0 {
			return Faultf("E_BAD_MESSAGE %s invalid message body size %d", v, size)
		}
		if size > p.MaxMessageBytes {
			return Faultf("E_BAD_MESSAGE %s message too big %d > %d", v, size, p.MaxMessageBytes)
		}
	default:
		if size <= 0 {
			return Faultf("E_BAD_BODY %s invalid body size %d", v, size)
		}
		if size > p.MaxBodyBytes {
			return Faultf("E_BAD_BODY %s body too big %d > %d", v, size, p.MaxBodyBytes)
		}
	}
	return nil
}

// Truncated returns the error that nsqd reports when the stream ends within the command at the start of b. It returns
// nil if nsqd reports none: between commands, or within a line.
func (p *Parser) Truncated(b []byte) *Fault {
	var cmd Command
	if n, f := p.Next(b, &cmd); n != 0 || f != nil || !cmd.Verb.hasBody() {
		return nil
	}
	lf := bytes.IndexByte(b, '\n')
	if lf < 0 {
		return nil
	}
	part := ""
	if len(b) < lf+1+publish.SizeBytes {
		part = " size"
	}
	switch cmd.Verb.Plain() {
	case VerbPub, VerbDpub:
		return Faultf("E_BAD_MESSAGE %s failed to read message body%s", cmd.Verb, part)
	case VerbMpub:
		if part == "" {
			return NewFault("E_BAD_MESSAGE MPUB failed to read message body")
		}
	}
	return Faultf("E_BAD_BODY %s failed to read body%s", cmd.Verb, part)
}
