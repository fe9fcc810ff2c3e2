package native

import (
	"errors"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// A reader whose place was removed hears of that by name, with the first id that exists, from which it can go on.
func TestReadOfWhatIsGone(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 0)
	settings := topic.Settings()
	settings.RetentionBytes = 1 << 20
	if _, err := topic.ConfigureAs(t.Context(), "", settings); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 512<<10)
	var gone *node.TrimmedError
	eventually(t, "what is beyond the limit is removed", func() bool {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: body}); err != nil {
			t.Fatal(err)
		}
		_, err := topic.OpenReader(0, node.Start{Kind: node.StartAtID, ID: 5})
		return errors.As(err, &gone)
	})
	c := w.dial()
	m := &wire.Read{Topic: topic.ID(), From: wire.FromID, Value: 5, Credit: 1 << 20}
	for {
		id := c.send(wire.TypeRead, m)
		f := c.answer()
		if f.Type == wire.TypeRecords && f.Request == id {
			break
		}
		var out wire.Outcome
		if err := wire.Decode(f.payload, &out); err != nil || f.Type != wire.TypeReadEnd || f.Request != id ||
			f.Status != netproto.StatusGap || int64(out.First) <= m.Value {
			t.Fatalf("%v %v, first %d: %v", f.Type, f.Status, out.First, err)
		}
		m.Value = int64(out.First) // and if that is removed meanwhile, too, the next answer says so
	}
	if m.Value == 5 {
		t.Error("what is gone was read")
	}
}
