package forward

import (
	"bytes"
	"testing"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/inbox"
	"penstock/engine/route"
	"penstock/replicate/wire"
	"penstock/segment"
)

func sampleLane() *lane {
	return &lane{Lane: route.NewLane(9), id: segment.Identity{Topic: uuid.UUID{1, 2, 3}, Partition: 7}}
}

// The other node decodes exactly what this node sent, with headers and without. The bytes of a put without headers are
// the same as before headers were introduced.
func TestForwardedPutBytes(t *testing.T) {
	plain := &inbox.Put{Messages: [][]byte{[]byte("one"), []byte("2")}}
	plain.DeferMs = 5
	var buf wire.Buffer
	encode(&buf, sampleLane(), plain)
	want := append([]byte{1, 2, 3, 15: 0, 16: 7, 20: 5, 24: 9, 28: 0, 32: 2, 35: 0},
		"\x03\x00\x00\x00one\x01\x00\x00\x002"...)
	if !bytes.Equal(buf.Bytes, want) {
		t.Errorf("a put without headers is % x, want % x", buf.Bytes, want)
	}
	headered := &inbox.Put{
		Messages: plain.Messages,
		Headers:  [][]base.Header{{{Key: []byte("a"), Value: []byte("bc")}, {Key: []byte("d"), Value: nil}}, nil},
	}
	headered.Headered = true
	encode(&buf, sampleLane(), headered)
	if buf.Bytes[28] != byte(wire.PutHeadered) {
		t.Errorf("its kind is %d", buf.Bytes[28])
	}
	var p forwardedPut
	if !p.decodeMessages(buf.Bytes[wire.PutHeadBytes:], 2, true) {
		t.Fatal("what was encoded cannot be decoded")
	}
	if !equalMessages(&p.Put, headered) {
		t.Errorf("it is read as %q with %q", p.Messages, p.Headers)
	}
}

func equalMessages(a, b *inbox.Put) bool {
	if len(a.Messages) != len(b.Messages) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Messages {
		if !bytes.Equal(a.Messages[i], b.Messages[i]) {
			return false
		}
	}
	for i := range a.Headers {
		if len(a.Headers[i]) != len(b.Headers[i]) {
			return false
		}
		for j, kv := range a.Headers[i] {
			if !bytes.Equal(kv.Key, b.Headers[i][j].Key) || !bytes.Equal(kv.Value, b.Headers[i][j].Value) {
				return false
			}
		}
	}
	return true
}

// No bytes from another node cause a panic, and a put that was decoded means the same when it is encoded again.
func FuzzForwardedPut(f *testing.F) {
	f.Add([]byte("\x03\x00\x00\x00one\x01\x00\x00\x002"), uint32(2), false)
	f.Add([]byte("\x01\x00\x00\x00\x01\x00\x00\x00a\x00\x00\x00\x00\x01\x00\x00\x00x"), uint32(1), true)
	f.Add([]byte("\xff\xff\xff\xff"), uint32(1<<31), true)
	f.Fuzz(func(t *testing.T, b []byte, count uint32, headered bool) {
		var p forwardedPut
		if !p.decodeMessages(b, count, headered) {
			return
		}
		if uint32(len(p.Messages)) != count {
			t.Fatalf("%d of %d messages", len(p.Messages), count)
		}
		p.Headered = headered
		var buf wire.Buffer
		encode(&buf, sampleLane(), &p.Put)
		if !bytes.Equal(buf.Bytes[wire.PutHeadBytes:], b) {
			t.Fatalf("sent on, it is % x, not % x", buf.Bytes[wire.PutHeadBytes:], b)
		}
	})
}
