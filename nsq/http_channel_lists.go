package nsq

import (
	"time"
	"unicode/utf8"

	"penstock/engine"
)

// The types of this file are answers of the HTTP API as JSON, for programs that read them.

// PeekList is the answer of /channel/peek and /topic/peek, oldest message first.
type PeekList struct {
	Messages []PeekedMessage `json:"messages"`
}

// PeekedMessage is a copy of a stored message. Of Body and BodyBase64 one is there: text is told as text.
type PeekedMessage struct {
	ID         string         `json:"id"`
	Partition  uint32         `json:"partition"`
	Number     uint64         `json:"number"`       // in the partition, from 0
	Timestamp  time.Time      `json:"timestamp"`    // when it was published
	Due        time.Time      `json:"due,omitzero"` // of one that was published with a delay
	Headers    []PeekedHeader `json:"headers,omitempty"`
	Body       *string        `json:"body,omitempty"`
	BodyBase64 []byte         `json:"body_base64,omitempty"`
	BodyBytes  int            `json:"body_bytes"`          // of the whole body
	Truncated  bool           `json:"truncated,omitempty"` // what is told of the body is its beginning
}

// PeekedHeader is a header; of Value and ValueBase64 one is there.
type PeekedHeader struct {
	Name        string  `json:"name"` // bytes that are no UTF-8 are replaced
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

// WaitingList is the answer of /channel/pending and /channel/deferred.
type WaitingList struct {
	Messages []WaitingMessage `json:"messages"`
}

// WaitingMessage is a message that a consumer has, or that waits for its time.
type WaitingMessage struct {
	ID        string    `json:"id"`
	Partition uint32    `json:"partition"`
	Number    uint64    `json:"number"`
	Since     time.Time `json:"since,omitzero"` // in flight: when it was handed out
	Due       time.Time `json:"due,omitzero"`   // in flight: when it times out; deferred: when it is delivered
	Attempts  uint16    `json:"attempts"`       // deliveries so far
	Client    string    `json:"client,omitempty"`
}

// Redriven is the answer of /channel/redrive.
type Redriven struct {
	Moved int `json:"moved"` // messages that were published to the topic again
}

// textOr gives bytes that are UTF-8 as text and others as they are.
func textOr(b []byte) (text *string, raw []byte) {
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	return nil, b
}

func peekList(all []engine.PeekedMessage) PeekList {
	out := PeekList{Messages: make([]PeekedMessage, len(all))}
	for i := range all {
		m := &all[i]
		p := &out.Messages[i]
		*p = PeekedMessage{
			ID: m.ID.String(), Partition: m.ID.Partition(), Number: uint64(m.ID.MsgID()),
			Timestamp: m.Timestamp, Due: m.Due, BodyBytes: m.BodyBytes, Truncated: m.Truncated,
		}
		p.Body, p.BodyBase64 = textOr(m.Body)
		for _, h := range m.Headers {
			out := PeekedHeader{Name: string(h.Key)}
			out.Value, out.ValueBase64 = textOr(h.Value)
			p.Headers = append(p.Headers, out)
		}
	}
	return out
}

func waitingList(all []engine.PendingMessage) WaitingList {
	out := WaitingList{Messages: make([]WaitingMessage, len(all))}
	for i := range all {
		m := &all[i]
		out.Messages[i] = WaitingMessage{
			ID: m.ID.String(), Partition: m.ID.Partition(), Number: uint64(m.ID.MsgID()),
			Since: m.Since, Due: m.Due, Attempts: m.Attempts, Client: m.Client,
		}
	}
	return out
}

// String says who a connection is in the list of what is in flight.
func (c *conn) String() string {
	set := c.set.Load()
	if set.clientID == "" {
		return c.remote
	}
	return set.clientID + " " + c.remote
}
