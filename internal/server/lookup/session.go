package lookup

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"penstock/internal/node/names"
)

const (
	magicV1 = "  V1"

	// maxLineBytes bounds a command's line including its newline; the longest valid line has about 150 bytes. It is
	// also the size of a connection's read buffer.
	maxLineBytes = 4096

	// sizeBytes is the size of the length prefix of IDENTIFY's body and of each answer: a big-endian uint32.
	sizeBytes = 4

	// maxIdentifyBytes bounds the body of an nsqd's IDENTIFY, which normally has about 150 bytes.
	maxIdentifyBytes = 16 << 10

	// maxPeerTextBytes bounds each text in that body, because the texts are kept and repeated in lookups.
	maxPeerTextBytes = 255
)

// errLineTooLong ends a connection without an answer, as for NSQ's clients.
var errLineTooLong = errors.New("nsq: a line is longer than any command")

// session is the protocol state of one connection to the TCP port: which nsqd is at the other end. It reads commands
// and returns answers; tcpServer.serveConn owns the connection itself. Only the connection's goroutine uses it.
type session struct {
	registry   *registry
	remote     string      // the nsqd's end of the connection, which tells registrants apart
	self       []byte      // the answer to IDENTIFY
	registrant *registrant // nil until IDENTIFY
}

// fault is an error that the protocol defines. Its text is the answer, after which the connection is closed.
type fault struct{ text string }

func faultf(format string, args ...any) *fault { return &fault{fmt.Sprintf(format, args...)} }

// readLine returns the next line without the white space around it. The bytes are valid until the next read.
func readLine(br *bufio.Reader) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, errLineTooLong
	case err != nil:
		return nil, err
	}
	return bytes.TrimSpace(line), nil
}

// step reads one command, executes it, and returns its answer or a fault. An error is an error of reading, for which
// there is no answer.
func (s *session) step(br *bufio.Reader) (answer []byte, f *fault, err error) {
	line, err := readLine(br)
	if err != nil {
		return nil, nil, err
	}
	params := strings.Split(string(line), " ")
	switch params[0] {
	case "PING":
		if s.registrant != nil {
			s.registrant.lastUpdate.Store(time.Now().UnixNano())
		}
		return okAnswer, nil, nil
	case "IDENTIFY":
		answer, f = s.identify(br)
	case "REGISTER":
		answer, f = s.register(params)
	case "UNREGISTER":
		answer, f = s.unregister(params)
	default:
		f = faultf("E_INVALID invalid command %s", params[0])
	}
	return answer, f, nil
}

var okAnswer = []byte("OK")

func (s *session) identify(br *bufio.Reader) ([]byte, *fault) {
	if s.registrant != nil {
		return nil, &fault{"E_INVALID cannot IDENTIFY again"}
	}
	var head [sizeBytes]byte
	if _, err := io.ReadFull(br, head[:]); err != nil {
		return nil, &fault{"E_BAD_BODY IDENTIFY failed to read body size"}
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	switch {
	case size < 0: // nsqlookupd itself crashes on this
		return nil, faultf("E_BAD_BODY IDENTIFY invalid body size %d", size)
	case size > maxIdentifyBytes:
		return nil, faultf("E_BAD_BODY IDENTIFY body too big %d > %d", size, maxIdentifyBytes)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(br, body); err != nil {
		return nil, &fault{"E_BAD_BODY IDENTIFY failed to read body"}
	}
	p, f := parseRegistrant(body)
	if f != nil {
		return nil, f
	}
	p.RemoteAddress = s.remote
	p.lastUpdate.Store(time.Now().UnixNano())
	s.registrant = p
	s.registry.join(p)
	return s.self, nil
}

// parseRegistrant parses the description that an nsqd sends of itself.
func parseRegistrant(body []byte) (*registrant, *fault) {
	p := new(registrant)
	if json.Unmarshal(body, &p.Producer) != nil {
		return nil, &fault{"E_BAD_BODY IDENTIFY failed to decode JSON body"}
	}
	if p.BroadcastAddress == "" || p.TCPPort == 0 || p.HTTPPort == 0 || p.Version == "" {
		return nil, &fault{"E_BAD_BODY IDENTIFY missing fields"}
	}
	for _, port := range []int{p.TCPPort, p.HTTPPort} {
		if port < 0 || port > 65535 {
			return nil, faultf("E_BAD_BODY IDENTIFY invalid port %d", port)
		}
	}
	for _, text := range []string{p.BroadcastAddress, p.Hostname, p.Version} {
		if len(text) > maxPeerTextBytes {
			return nil, faultf("E_BAD_BODY IDENTIFY text too long %d > %d", len(text), maxPeerTextBytes)
		}
	}
	return p, nil
}

// topicAndChannel returns the parameters of REGISTER and UNREGISTER; the channel may be empty.
func topicAndChannel(params []string) (topic, channel string, f *fault) {
	command, params := params[0], params[1:]
	if len(params) == 0 {
		return "", "", faultf("E_INVALID %s insufficient number of params", command)
	}
	topic = params[0]
	if len(params) > 1 {
		channel = params[1]
	}
	switch {
	case !names.ValidTopic(topic):
		return "", "", faultf("E_BAD_TOPIC %s topic name '%s' is not valid", command, topic)
	case channel != "" && !names.ValidChannel(channel):
		return "", "", faultf("E_BAD_CHANNEL %s channel name '%s' is not valid", command, channel)
	}
	return topic, channel, nil
}

// register executes REGISTER. A full registry does not end the connection: nsqd ignores the answer, and if the
// connection ended it would connect and register everything again.
func (s *session) register(params []string) ([]byte, *fault) {
	if s.registrant == nil {
		return nil, &fault{"E_INVALID client must IDENTIFY"}
	}
	topic, channel, f := topicAndChannel(params)
	if f != nil {
		return nil, f
	}
	if s.registry.add(s.registrant, topic, channel) != nil {
		return fullAnswer, nil
	}
	return okAnswer, nil
}

var fullAnswer = []byte("E_REGISTER_FAILED REGISTER failed too many topics and channels are registered")

func (s *session) unregister(params []string) ([]byte, *fault) {
	if s.registrant == nil {
		return nil, &fault{"E_INVALID client must IDENTIFY"}
	}
	topic, channel, f := topicAndChannel(params)
	if f != nil {
		return nil, f
	}
	s.registry.remove(s.registrant, topic, channel)
	return okAnswer, nil
}

// end removes the nsqd's registrations. It is called when the connection has ended.
func (s *session) end() {
	if s.registrant != nil {
		s.registry.leave(s.registrant)
	}
}
