package api

import (
	"time"
	"unicode/utf8"

	"penstock/internal/node"
)

// The types in this file are the JSON answers of the HTTP API. Programs depend on them.

// PeekList is the answer of /channel/peek and /topic/peek, with the oldest message first.
type PeekList struct {
	Messages []PeekedMessage `json:"messages"`
}

// PeekedMessage is a copy of a stored message. Exactly one of Body and BodyBase64 is set: Body if the bytes are UTF-8.
type PeekedMessage struct {
	ID         string         `json:"id"`
	Partition  uint32         `json:"partition"`
	Number     uint64         `json:"number"`       // in the partition, from 0
	Timestamp  time.Time      `json:"timestamp"`    // when it was published
	Due        time.Time      `json:"due,omitzero"` // if the message was published with a delay
	Headers    []PeekedHeader `json:"headers,omitempty"`
	Body       *string        `json:"body,omitempty"`
	BodyBase64 []byte         `json:"body_base64,omitempty"`
	BodyBytes  int            `json:"body_bytes"`          // of the whole body
	Truncated  bool           `json:"truncated,omitempty"` // Body or BodyBase64 holds only the beginning
}

// PeekedHeader is a header; exactly one of Value and ValueBase64 is set.
type PeekedHeader struct {
	Name        string  `json:"name"` // invalid UTF-8 is replaced
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

// WaitingList is the answer of /channel/pending and /channel/deferred.
type WaitingList struct {
	Messages []WaitingMessage `json:"messages"`
}

// WaitingMessage is a message that is in flight or deferred.
type WaitingMessage struct {
	ID        string    `json:"id"`
	Partition uint32    `json:"partition"`
	Number    uint64    `json:"number"`
	Since     time.Time `json:"since,omitzero"` // in flight: when it was delivered
	Due       time.Time `json:"due,omitzero"`   // when it times out (in flight), or is delivered (deferred)
	Attempts  uint16    `json:"attempts"`       // deliveries so far
	Client    string    `json:"client,omitempty"`
}

// Redriven is the answer of /channel/redrive.
type Redriven struct {
	Moved int `json:"moved"` // number of messages that were published to the topic again
}

// TextOr returns bytes that are valid UTF-8 as text, and other bytes unchanged.
func TextOr(b []byte) (text *string, raw []byte) {
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	return nil, b
}

func peekList(all []node.PeekedMessage) PeekList {
	out := PeekList{Messages: make([]PeekedMessage, len(all))}
	for i := range all {
		m := &all[i]
		p := &out.Messages[i]
		*p = PeekedMessage{
			ID: m.ID.String(), Partition: m.ID.Partition(), Number: uint64(m.ID.MsgID()),
			Timestamp: m.Timestamp, Due: m.Due, BodyBytes: m.BodyBytes, Truncated: m.Truncated,
		}
		p.Body, p.BodyBase64 = TextOr(m.Body)
		for _, h := range m.Headers {
			out := PeekedHeader{Name: string(h.Key)}
			out.Value, out.ValueBase64 = TextOr(h.Value)
			p.Headers = append(p.Headers, out)
		}
	}
	return out
}

func waitingList(all []node.PendingMessage) WaitingList {
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
