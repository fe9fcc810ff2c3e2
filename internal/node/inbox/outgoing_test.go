package inbox

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
)

// CarryAll returns the partition of the messages' keys, and stores each key as a header. It refuses messages that
// cannot be one put.
func TestCarryAll(t *testing.T) {
	const partitions = 1000
	named := []message.Header{{Key: []byte("key"), Value: []byte("a")}}
	other := []message.Header{{Key: []byte("x"), Value: []byte("y")}}
	at := batch.PartitionOf([]byte("a"), partitions)
	for _, c := range []struct {
		name string
		ms   []message.Outgoing
		want int
		err  error
	}{
		{"no key", []message.Outgoing{{Body: []byte("m")}, {Body: []byte("n"), Headers: other}}, AnyPartition, nil},
		{"a key and a header", []message.Outgoing{{Key: []byte("a"), Headers: other}, {Headers: named}, {}}, at, nil},
		{"two keys", []message.Outgoing{{Key: []byte("a")}, {Key: []byte("b")}}, AnyPartition, errs.ErrBatchKeys},
		{"two delays", []message.Outgoing{{Delay: time.Second}, {}}, AnyPartition, errs.ErrBatchKeys},
		{"twice a key", []message.Outgoing{{Key: []byte("a"), Headers: named}}, AnyPartition, errs.ErrHeaders},
		{"nothing", nil, AnyPartition, nil},
	} {
		w := NewWaiter()
		n, err := w.CarryAll(c.ms, partitions)
		if n != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: partition %d, %v", c.name, n, err)
		}
		for i := range w.Headers {
			headers, key := w.Headers[i], string(c.ms[i].Key)
			if key != "" && (len(headers) != 2 || string(headers[1].Value) != key || string(headers[0].Key) != "x") {
				t.Errorf("%s: message %d has headers %s", c.name, i, headers)
			}
		}
		if err == nil && len(w.Messages) != len(c.ms) {
			t.Errorf("%s: %d messages", c.name, len(w.Messages))
		}
		if w.Free(); w.Messages != nil || w.Headers != nil || w.lists != nil {
			t.Errorf("%s: the waiter keeps something", c.name)
		}
	}
}

// A Waiter fills whole cache lines.
func TestSizeOfWaiter(t *testing.T) {
	if n := unsafe.Sizeof(Waiter{}); n != 256 {
		t.Errorf("a waiter has %d bytes", n)
	}
}
