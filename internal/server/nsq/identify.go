package nsq

import (
	"encoding/json"
	"time"

	"penstock/internal/clip"
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/publish"
)

// identity is the body of IDENTIFY, in which a client describes itself. Unknown fields are ignored.
type identity struct {
	ClientID            string `json:"client_id"`
	Hostname            string `json:"hostname"`
	UserAgent           string `json:"user_agent"`
	FeatureNegotiation  bool   `json:"feature_negotiation"`
	HeartbeatInterval   int    `json:"heartbeat_interval"`
	OutputBufferSize    int    `json:"output_buffer_size"`
	OutputBufferTimeout int    `json:"output_buffer_timeout"`
	TLSv1               bool   `json:"tls_v1"`
	Deflate             bool   `json:"deflate"`
	DeflateLevel        int    `json:"deflate_level"`
	Snappy              bool   `json:"snappy"`
	SampleRate          int    `json:"sample_rate"`
	MsgTimeout          int    `json:"msg_timeout"`

	ExtendSupport bool   `json:"extend_support"` // youzan's
	DesiredTag    string `json:"desired_tag"`
}

// agreed hold for one connection: the defaults, or the values from IDENTIFY. They are immutable once published to
// other goroutines.
type agreed struct {
	clientID, hostname, userAgent string

	heartbeat     time.Duration // 0: no heartbeats, and no limit on silence
	outputBuffer  int           // bytes; 0: unbuffered
	outputTimeout time.Duration // as requested, but delays nothing
	sampleRate    int           // percent; 0: all messages
	msgTimeout    time.Duration
	extendSupport bool   // messages carry their headers, as youzan's clients expect them
	tag           string // deliver only messages with this tag; empty: those whose tag no consumer asked for

	// The features that the last IDENTIFY requested and the server offers.
	tls          bool
	compression  compression
	deflateLevel int
}

func (o *Settings) defaultSettings(remoteHost string) agreed {
	return agreed{
		clientID:      remoteHost,
		hostname:      remoteHost,
		heartbeat:     o.HeartbeatInterval,
		outputBuffer:  defaultOutputBuffer,
		outputTimeout: defaultOutputTimeout,
		msgTimeout:    o.MsgTimeout,
	}
}

// negotiation is the reply to an IDENTIFY with feature_negotiation. go-nsq obeys tls_v1, deflate and snappy even if it
// did not request them, so they are true only if requested and offered. With max_rdy_count 0 go-nsq would never send
// RDY.
type negotiation struct {
	MaxRdyCount         int    `json:"max_rdy_count"`
	Version             string `json:"version"`
	MaxMsgTimeout       int64  `json:"max_msg_timeout"`
	MsgTimeout          int64  `json:"msg_timeout"`
	TLSv1               bool   `json:"tls_v1"`
	Deflate             bool   `json:"deflate"`
	DeflateLevel        int    `json:"deflate_level"`
	MaxDeflateLevel     int    `json:"max_deflate_level"`
	Snappy              bool   `json:"snappy"`
	SampleRate          int    `json:"sample_rate"`
	AuthRequired        bool   `json:"auth_required"`
	OutputBufferSize    int    `json:"output_buffer_size"`
	OutputBufferTimeout int64  `json:"output_buffer_timeout"`
	DesiredTag          string `json:"desired_tag,omitempty"` // youzan's
}

// identify evaluates an IDENTIFY body. It returns the new settings and the response, or the fault.
func (o *Options) identify(body []byte, old agreed) (agreed, []byte, *command.Fault) {
	var id identity
	if json.Unmarshal(body, &id) != nil {
		return old, nil, command.NewFault("E_BAD_BODY IDENTIFY failed to decode JSON body")
	}
	s := old
	s.clientID = clipText(id.ClientID, old.clientID)
	s.hostname = clipText(id.Hostname, old.hostname)
	s.userAgent = clipText(id.UserAgent, old.userAgent)
	now := o.Settings.Load()
	if f := now.applyIdentity(&id, &s); f != nil {
		return old, nil, f
	}
	s.tls, s.compression, s.deflateLevel = false, compressNone, 0
	if !id.FeatureNegotiation {
		return s, []byte("OK"), nil
	}
	s.tls = id.TLSv1 && o.TLS != nil
	deflate, snappy := id.Deflate && !now.DisableDeflate, id.Snappy && !now.DisableSnappy
	level := now.deflateLevel(&id)
	switch {
	case deflate && snappy:
		return old, nil, command.NewFault("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
	case deflate:
		s.compression, s.deflateLevel = compressDeflate, level
	case snappy:
		s.compression = compressSnappy
	}
	reply, err := json.Marshal(negotiation{
		MaxRdyCount:         now.MaxRdyCount,
		Version:             o.Version,
		MaxMsgTimeout:       now.MaxMsgTimeout.Milliseconds(),
		MsgTimeout:          s.msgTimeout.Milliseconds(),
		TLSv1:               s.tls,
		Deflate:             deflate,
		DeflateLevel:        level,
		MaxDeflateLevel:     now.MaxDeflateLevel,
		Snappy:              snappy,
		SampleRate:          s.sampleRate,
		AuthRequired:        o.Auth != nil,
		OutputBufferSize:    s.outputBuffer,
		OutputBufferTimeout: s.outputTimeout.Milliseconds(),
		DesiredTag:          s.tag,
	})
	if err != nil {
		panic("BUG: the IDENTIFY reply does not encode: " + err.Error())
	}
	return s, reply, nil
}

// deflateLevel returns the level of deflate for the client, if it uses deflate.
func (o *Settings) deflateLevel(id *identity) int {
	level := defaultDeflateLevel
	if id.Deflate && id.DeflateLevel > 0 {
		level = id.DeflateLevel
	}
	return min(level, o.MaxDeflateLevel)
}

func clipText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return clip.Text(s, maxClientTextBytes)
}

// applyIdentity checks each value in nsqd's order and changes s. For intervals, sizes and timeouts 0 keeps the current
// setting; for heartbeats and output buffering -1 switches them off.
func (o *Settings) applyIdentity(id *identity, s *agreed) *command.Fault {
	ms := func(d time.Duration) int { return int(d / time.Millisecond) }
	switch v := id.HeartbeatInterval; {
	case v == -1:
		s.heartbeat = 0
	case v == 0:
	case v >= ms(minHeartbeat) && v <= ms(o.MaxHeartbeatInterval):
		s.heartbeat = time.Duration(v) * time.Millisecond
	default:
		return command.Faultf("E_BAD_BODY IDENTIFY heartbeat interval (%d) is invalid", v)
	}
	switch v := id.OutputBufferTimeout; {
	case v == -1:
		s.outputTimeout = 0
	case v == 0:
	case v >= ms(o.MinOutputBufferTimeout) && v <= ms(o.MaxOutputBufferTimeout):
		s.outputTimeout = time.Duration(v) * time.Millisecond
	default:
		return command.Faultf("E_BAD_BODY IDENTIFY output buffer timeout (%d) is invalid", v)
	}
	switch v := id.OutputBufferSize; {
	case v == -1:
		s.outputBuffer, s.outputTimeout = 0, 0
	case v == 0:
	case v >= minOutputBuffer && v <= o.MaxOutputBufferBytes:
		s.outputBuffer = v
	default:
		return command.Faultf("E_BAD_BODY IDENTIFY output buffer size (%d) is invalid", v)
	}
	if id.SampleRate < 0 || id.SampleRate > 99 {
		return command.Faultf("E_BAD_BODY IDENTIFY sample rate (%d) is invalid", id.SampleRate)
	}
	s.sampleRate = id.SampleRate
	switch v := id.MsgTimeout; {
	case v == 0:
	case v >= ms(minMsgTimeout) && v <= ms(o.MaxMsgTimeout):
		s.msgTimeout = time.Duration(v) * time.Millisecond
	default:
		return command.Faultf("E_BAD_BODY IDENTIFY msg timeout (%d) is invalid", v)
	}
	if id.DesiredTag != "" && !publish.ValidTag(id.DesiredTag) {
		return command.Faultf("E_BAD_BODY IDENTIFY desired tag %.100q is invalid", id.DesiredTag)
	}
	s.extendSupport, s.tag = id.ExtendSupport, id.DesiredTag
	return nil
}
