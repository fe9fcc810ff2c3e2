package wire

import "encoding/json"

// Label says at the leader who a consumer is whose client is connected to another node. It travels as Subscribe.Label.
type Label struct {
	Node   string          `json:"-"`                // name of that node; the leader fills it in
	Text   string          `json:"text"`             // the client in a few words
	Client json.RawMessage `json:"client,omitempty"` // what that node tells about the client; nil: nothing
}

// String names the client and the node that it is connected to.
func (l Label) String() string { return l.Text + " at " + l.Node }

// EncodeLabel returns what Subscribe.Label should be; nil if that is too long. A label is not worth a failure.
func EncodeLabel(l *Label) []byte {
	if text, err := json.Marshal(l); err == nil && len(text) <= MaxLabelBytes {
		return text
	}
	return nil
}

// DecodeLabel reads a Subscribe.Label. One that cannot be read is empty.
func DecodeLabel(p []byte) (l Label) {
	_ = json.Unmarshal(p, &l)
	return l
}
