package nsq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"penstock/internal/node"
	"penstock/internal/server/publish"
)

const (
	// MaxLineBytes bounds a command line including its LF. A longer line closes the connection without an error frame,
	// as in nsqd, whose read buffer has this size.
	MaxLineBytes = 16 << 10

	idBytes = 16 // a message id on the wire
)

// verb identifies a command; the zero value is no command.
type verb uint8

const (
	verbNone verb = iota
	verbIdentify
	verbAuth
	verbSub
	verbPub
	verbMpub
	verbDpub
	verbRdy
	verbFin
	verbReq
	verbTouch
	verbCls
	verbNop
	verbPubExt
	verbPubTrace
	verbMpubExt
	verbMpubTrace
	verbSubAdvanced
	verbSubOrdered
)

func (v verb) String() string {
	return [...]string{
		"", "IDENTIFY", "AUTH", "SUB", "PUB", "MPUB", "DPUB", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP",
		"PUB_EXT", "PUB_TRACE", "MPUB_EXT", "MPUB_TRACE", "SUB_ADVANCED", "SUB_ORDERED",
	}[v]
}

// Verbs returns the names of all commands.
func Verbs() (all []string) {
	for v := verbNone + 1; v <= verbSubOrdered; v++ {
		all = append(all, v.String())
	}
	return all
}

// phase is the protocol state of a connection. It only increases.
type phase uint8

const (
	phaseInit       phase = iota // nothing subscribed yet
	phaseSubscribed              // SUB was accepted
	phaseClosing                 // CLS was accepted: no more deliveries, but FIN, REQ and TOUCH still work
)

// allowed reports whether v may be used in this phase. Publishing and NOP are always allowed.
func (p phase) allowed(v verb) bool {
	switch v {
	case verbIdentify, verbAuth, verbSub, verbSubAdvanced, verbSubOrdered:
		return p == phaseInit
	case verbRdy, verbFin, verbReq, verbTouch:
		return p != phaseInit // RDY after CLS is accepted and ignored
	case verbCls:
		return p == phaseSubscribed
	}
	return true
}

// fault is an error that ends the connection. Its text is sent as an error frame after all earlier answers. If the text
// is empty, the connection is closed without a frame.
type fault struct{ text string }

// newFault returns a fault with this text; "": none.
func newFault(text string) *fault { return &fault{text: text} }

func faultf(format string, args ...any) *fault { return &fault{text: fmt.Sprintf(format, args...)} }

// command is one parsed command. Its slices point into the parser's input.
type command struct {
	verb          verb
	topic         []byte
	channel       []byte
	id            []byte // FIN, REQ, TOUCH: 16 bytes of any value
	number        uint64 // RDY: count; REQ, DPUB: milliseconds
	body          []byte // PUB, DPUB: a message; MPUB: a validated batch; IDENTIFY, AUTH: the body
	partitionArgs        // sent by youzan's clients only
}

// limits are the bounds that the parser enforces.
type limits struct {
	maxMessageBytes int
	maxBodyBytes    int
	maxRdyCount     int
	maxDeferMillis  uint64
}

// parser parses commands from a byte stream. It keeps no bytes: the caller passes all bytes from the start of a command
// on, and if the command is incomplete, passes them again with more bytes. The result does not depend on how the stream
// is divided into calls.
type parser struct {
	limits
	phase      phase
	heartbeats bool // the client accepts heartbeats; SUB requires that

	// tlsRequired: TLS has not been negotiated yet, and until then only IDENTIFY is allowed.
	tlsRequired bool

	// stranger: the client has to prove who it is with AUTH, and has not. Until then its bodies may have allowance more
	// bytes. exceeded: a body had too many.
	stranger  bool
	allowance int
	exceeded  bool

	// binaryIDs: the ids in FIN, REQ and TOUCH are 16 arbitrary bytes, which may include LF and space.
	binaryIDs bool

	// need is, after an incomplete command, a lower bound of the command's total length.
	need int

	topic []byte // the last valid topic name, so that a name is not validated for every message
	batch publish.BatchCheck
}

// next parses the command at the start of b into cmd. It returns the number of bytes consumed; 0 without a fault means
// that the command is incomplete. It allocates only for a fault.
func (p *parser) next(b []byte, cmd *command) (int, *fault) {
	p.need = len(b) + 1
	if len(b) == 0 {
		return 0, nil
	}
	first := b[0]
	if p.tlsRequired {
		first = 0 // skips the fast paths: every command is checked below
	}
	switch first {
	case 'F':
		if hasPrefix(b, "FIN ") {
			return p.withID(b, 4, verbFin, cmd)
		}
	case 'R':
		if hasPrefix(b, "REQ ") {
			return p.withID(b, 4, verbReq, cmd)
		}
	case 'T':
		if hasPrefix(b, "TOUCH ") {
			return p.withID(b, 6, verbTouch, cmd)
		}
	}
	lf := bytes.IndexByte(b[:min(len(b), MaxLineBytes)], '\n')
	if lf < 0 {
		if len(b) >= MaxLineBytes {
			return 0, newFault("")
		}
		return 0, nil
	}
	line := trimCR(b[:lf])
	name, rest, more := cut(line)
	v := lookupVerb(name)
	if p.tlsRequired && v != verbIdentify {
		return 0, faultf("E_INVALID cannot %s in current state (TLS required)", name)
	}
	if v == verbNone {
		return 0, faultf("E_INVALID invalid command %s", name)
	}
	*cmd = command{verb: v}
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

func lookupVerb(name []byte) verb {
	switch string(name) {
	case "PUB":
		return verbPub
	case "MPUB":
		return verbMpub
	case "DPUB":
		return verbDpub
	case "FIN":
		return verbFin
	case "REQ":
		return verbReq
	case "TOUCH":
		return verbTouch
	case "RDY":
		return verbRdy
	case "NOP":
		return verbNop
	case "SUB":
		return verbSub
	case "CLS":
		return verbCls
	case "IDENTIFY":
		return verbIdentify
	case "AUTH":
		return verbAuth
	}
	return lookupYouzanVerb(name)
}

func (v verb) hasBody() bool {
	switch v {
	case verbIdentify, verbAuth, verbPub, verbMpub, verbDpub:
		return true
	}
	return v.plain() != v && !v.subscribes()
}

// line checks the parameters in nsqd's order, before looking at any body. more says that rest is a parameter, possibly
// an empty one.
func (p *parser) line(cmd *command, rest []byte, more bool) *fault {
	if !p.phase.allowed(cmd.verb) {
		return faultf("E_INVALID cannot %s in current state", cmd.verb)
	}
	switch cmd.verb {
	case verbPub, verbMpub, verbPubExt, verbPubTrace, verbMpubExt, verbMpubTrace:
		return p.publishLine(cmd, rest, more)
	case verbDpub:
		return p.deferLine(cmd, rest, more)
	case verbSub, verbSubAdvanced, verbSubOrdered:
		return p.subscribeLine(cmd, rest, more)
	case verbRdy:
		return p.readyLine(cmd, rest, more)
	case verbFin, verbReq, verbTouch: // those with a parameter are parsed by withID
		return faultf("E_INVALID %s insufficient number of params", cmd.verb)
	case verbAuth:
		if more {
			return newFault("E_INVALID AUTH invalid number of parameters")
		}
	}
	return nil
}

func (p *parser) publishLine(cmd *command, rest []byte, more bool) *fault {
	if !more {
		return faultf("E_INVALID %s insufficient number of parameters", cmd.verb)
	}
	cmd.topic, rest, more = cut(rest)
	if f := p.checkTopic(cmd); f != nil || !more {
		return f
	}
	return cmd.partitionParam(rest)
}

func (p *parser) checkTopic(cmd *command) *fault {
	if bytes.Equal(cmd.topic, p.topic) && len(cmd.topic) > 0 {
		return nil
	}
	if !node.ValidTopicName(string(cmd.topic)) {
		sic := ""
		if cmd.verb.batches() {
			sic = "E_BAD_TOPIC " // nsqd repeats the code here, and clients may compare
		}
		return faultf("E_BAD_TOPIC %s%s topic name %q is not valid", sic, cmd.verb, cmd.topic)
	}
	p.topic = append(p.topic[:0], cmd.topic...)
	return nil
}

func (p *parser) deferLine(cmd *command, rest []byte, more bool) *fault {
	var millis []byte
	if more {
		cmd.topic, rest, more = cut(rest)
	}
	if !more {
		return newFault("E_INVALID DPUB insufficient number of parameters")
	}
	millis, _, _ = cut(rest)
	if f := p.checkTopic(cmd); f != nil {
		return f
	}
	n, ok := parseUint(millis)
	if !ok {
		return faultf("E_INVALID DPUB could not parse timeout %s", millis)
	}
	if n > p.maxDeferMillis {
		return faultf("E_INVALID DPUB timeout %d out of range 0-%d", n, p.maxDeferMillis)
	}
	cmd.number = n
	return nil
}

func (p *parser) subscribeLine(cmd *command, rest []byte, more bool) *fault {
	if !p.heartbeats {
		return newFault("E_INVALID cannot SUB with heartbeats disabled")
	}
	if more {
		cmd.topic, rest, more = cut(rest)
	}
	if !more {
		return newFault("E_INVALID SUB insufficient number of parameters")
	}
	cmd.channel, rest, more = cut(rest)
	if f := p.checkTopic(cmd); f != nil {
		return f
	}
	if !node.ValidChannelName(string(cmd.channel)) {
		return faultf("E_BAD_CHANNEL SUB channel name %q is not valid", cmd.channel)
	}
	if !more {
		return nil
	}
	return cmd.subscribeParams(rest)
}

func (p *parser) readyLine(cmd *command, rest []byte, more bool) *fault {
	cmd.number = 1
	if p.phase == phaseClosing || !more {
		return nil
	}
	count, _, _ := cut(rest)
	n, ok := parseUint(count)
	if !ok {
		return faultf("E_INVALID RDY could not parse count %s", count)
	}
	if n > uint64(p.maxRdyCount) {
		return faultf("E_INVALID RDY count %d out of range 0-%d", n, p.maxRdyCount)
	}
	cmd.number = n
	return nil
}

// withID parses a FIN, REQ or TOUCH whose id begins at b[at].
func (p *parser) withID(b []byte, at int, v verb, cmd *command) (int, *fault) {
	end, ok := at+idBytes, len(b) >= at+idBytes
	if !p.binaryIDs {
		end, ok = idEnd(b, at)
	}
	if !ok {
		return 0, nil
	}
	lf := bytes.IndexByte(b[end:min(len(b), max(end, MaxLineBytes))], '\n')
	if lf < 0 {
		if len(b) >= MaxLineBytes {
			return 0, newFault("")
		}
		return 0, nil
	}
	lf += end
	*cmd = command{verb: v, id: b[at:end]}
	if !p.phase.allowed(v) {
		return 0, faultf("E_INVALID cannot %s in current state", v)
	}
	glued, rest, more := cut(trimCR(b[end:lf]))
	if v == verbReq && !more {
		return 0, newFault("E_INVALID REQ insufficient number of params")
	}
	if len(cmd.id) != idBytes || len(glued) > 0 {
		return 0, newFault("E_INVALID invalid message ID")
	}
	if v == verbReq {
		millis, _, _ := cut(rest)
		n, ok := parseUint(millis)
		if !ok {
			return 0, faultf("E_INVALID REQ could not parse timeout %s", millis)
		}
		cmd.number = n
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
func (p *parser) body(b []byte, at int, cmd *command) (int, *fault) {
	if len(b) < at+publish.SizeBytes {
		p.need = at + publish.SizeBytes
		return 0, nil
	}
	size := int(int32(binary.BigEndian.Uint32(b[at:])))
	if f := p.checkSize(cmd.verb, size); f != nil {
		return 0, f
	}
	if p.stranger && size > p.allowance {
		return 0, p.beforeAuth(cmd.verb, size)
	}
	at += publish.SizeBytes
	have := b[at:min(len(b), at+size)]
	if cmd.verb.batches() {
		if wrong := p.batch.Check(have, size, p.maxMessageBytes, p.maxBodyBytes); wrong != "" {
			p.batch = publish.BatchCheck{}
			return 0, newFault(wrong)
		}
	}
	if len(have) < size {
		p.need = at + size
		return 0, nil
	}
	p.batch = publish.BatchCheck{}
	cmd.body = have
	if p.stranger {
		p.allowance -= size
	}
	return at + size, nil
}

// beforeAuth refuses a body that is too large for a client that has not proved who it is. None of the body is read.
func (p *parser) beforeAuth(v verb, size int) *fault {
	p.exceeded = true
	if v != verbIdentify && v != verbAuth {
		return faultf("E_AUTH_FIRST AUTH required before %s", v)
	}
	return faultf("E_BAD_BODY %s body too big %d > %d, the bytes that this client may still send before AUTH",
		v, size, p.allowance)
}

func (p *parser) checkSize(v verb, size int) *fault {
	switch v.plain() {
	case verbPub, verbDpub:
		if size <= 0 {
			return faultf("E_BAD_MESSAGE %s invalid message body size %d", v, size)
		}
		if size > p.maxMessageBytes {
			return faultf("E_BAD_MESSAGE %s message too big %d > %d", v, size, p.maxMessageBytes)
		}
	default:
		if size <= 0 {
			return faultf("E_BAD_BODY %s invalid body size %d", v, size)
		}
		if size > p.maxBodyBytes {
			return faultf("E_BAD_BODY %s body too big %d > %d", v, size, p.maxBodyBytes)
		}
	}
	return nil
}

// truncated returns the error that nsqd reports when the stream ends within the command at the start of b. It returns
// nil if nsqd reports none: between commands, or within a line.
func (p *parser) truncated(b []byte) *fault {
	var cmd command
	if n, f := p.next(b, &cmd); n != 0 || f != nil || !cmd.verb.hasBody() {
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
	switch cmd.verb.plain() {
	case verbPub, verbDpub:
		return faultf("E_BAD_MESSAGE %s failed to read message body%s", cmd.verb, part)
	case verbMpub:
		if part == "" {
			return newFault("E_BAD_MESSAGE MPUB failed to read message body")
		}
	}
	return faultf("E_BAD_BODY %s failed to read body%s", cmd.verb, part)
}
