package wire

import "encoding/json"

// Label tells the leader about a consumer whose client is connected to another node. It travels as Subscribe.Label.
type Label struct {
	Node   string          `json:"-"`                // name of that node; the leader fills it in
	Text   string          `json:"text"`             // a short description of the client
	Client json.RawMessage `json:"client,omitempty"` // that node's details of the client; nil: none
}

// String returns the client's description and the name of the node that it is connected to.
func (l Label) String() string { return l.Text + " at " + l.Node }

// EncodeLabel returns the bytes for Subscribe.Label, or nil if they are too long: a missing label is no reason to fail.
func EncodeLabel(l *Label) []byte {
	if text, err := json.Marshal(l); err == nil && len(text) <= MaxLabelBytes {
		return text
	}
	return nil
}

// DecodeLabel reads a Subscribe.Label. If it cannot be read, DecodeLabel returns an empty Label.
func DecodeLabel(p []byte) (l Label) {
	_ = json.Unmarshal(p, &l)
	return l
}
