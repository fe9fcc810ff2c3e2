package forward

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/clock"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/internal/node/route"
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
	encode(&buf, sampleLane(), plain, 0)
	want := append([]byte{1, 2, 3, 15: 0, 16: 7, 20: 5, 24: 9, 28: 0, 32: 2, 35: 0},
		"\x03\x00\x00\x00one\x01\x00\x00\x002"...)
	if !bytes.Equal(buf.Bytes, want) {
		t.Errorf("a put without headers is % x, want % x", buf.Bytes, want)
	}
	headered := &inbox.Put{
		Messages: plain.Messages,
		Headers:  [][]message.Header{{{Key: []byte("a"), Value: []byte("bc")}, {Key: []byte("d"), Value: nil}}, nil},
	}
	headered.Headered = true
	encode(&buf, sampleLane(), headered, 0)
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

// A put may have waited for a leader before it is sent. So the leader is told how long it may still wait, and refuses
// it while the node that sent it still waits for the answer. A put of a version that does not tell waits as long as the
// leader's own puts.
func TestForwardedPutTellsHowLongItMayWait(t *testing.T) {
	const sentAt, readAt = int64(5_000_000_000), int64(77_000_000_000) // by the clocks of two nodes
	pt := new(testPartition)
	clock := clock.New(func() time.Time { return time.Unix(0, readAt) }, func() time.Duration { return 0 })
	f := New(Env{Peers: &platform.Peers{Self: 2}, Clock: clock, Find: func(segment.Identity) Partition { return pt }})
	for _, c := range []struct{ deadline, want int64 }{
		{0, 0},
		{sentAt + int64(300*time.Millisecond), readAt + int64(300*time.Millisecond)},
		{sentAt + 1, readAt + int64(time.Millisecond)}, // rounded up
		{sentAt - int64(time.Second), readAt + int64(time.Millisecond)},
		{sentAt + int64(100*time.Hour), readAt + wire.MaxPutWaitMs*int64(time.Millisecond)},
	} {
		sent := &inbox.Put{Messages: [][]byte{[]byte("one")}}
		sent.DeadlineNs = c.deadline
		var buf wire.Buffer
		encode(&buf, sampleLane(), sent, sentAt)
		p := forwardedPut{f: f}
		h, rest, err := wire.DecodePutHead(buf.Bytes)
		if err == nil {
			err = p.decode(&h, rest)
		}
		if p.pt != pt || p.run != 9 || err != nil || p.DeadlineNs != c.want {
			t.Errorf("with the deadline %d it is read with the deadline %d, run %d: %v", c.deadline, p.DeadlineNs, p.run, err)
		}
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
		encode(&buf, sampleLane(), &p.Put, 0)
		if !bytes.Equal(buf.Bytes[wire.PutHeadBytes:], b) {
			t.Fatalf("sent on, it is % x, not % x", buf.Bytes[wire.PutHeadBytes:], b)
		}
	})
}
