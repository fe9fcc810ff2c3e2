package wire

import (
	"bytes"
	"testing"

	"penstock/batch"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// Any frame is either an error or a whole message, whose encoding is the same bytes.
func FuzzDecode(f *testing.F) {
	for _, m := range messages(f) {
		h, payload := sent(f, m)
		f.Add(uint8(h.Type), h.Flags == netproto.FlagSelfChecked, h.HeadBytes, payload)
	}
	var d Decoder
	f.Fuzz(func(t *testing.T, typ uint8, selfChecked bool, headBytes uint16, payload []byte) {
		h := netproto.Header{Type: netproto.Type(typ), PayloadBytes: uint32(len(payload))}
		if selfChecked {
			h.Flags, h.HeadBytes = netproto.FlagSelfChecked, headBytes
		}
		if d.Decode(&h, payload) != nil {
			return
		}
		verify(t, &d)
		kind, _ := Kind(h.Type)
		if d.Message.Kind != kind {
			t.Fatalf("kind %d in a %v", d.Message.Kind, h.Type)
		}
		var again netproto.Frame
		Encode(&again, d.ID, &d.Message, d.Runs)
		if got := append(again.Head, d.Body...); again.Type != h.Type || again.Flags != h.Flags ||
			!bytes.Equal(got, payload) {
			t.Fatalf("written again as\n% x\nit was\n% x", got, payload)
		}
	})
}

// verify checks everything that a receiver relies on.
func verify(t *testing.T, d *Decoder) {
	at, n, run, left := segment.Offset(0), 0, -1, 0
	for i := range d.Message.Batches {
		b := &d.Message.Batches[i]
		if i == 0 {
			at = b.Offset
		}
		if left == 0 {
			run++
			left = d.Runs[run].Bytes
		}
		r := &d.Runs[run]
		var h segment.Header
		bytes := d.Batch(i)
		if err := h.Decode(bytes); err != nil {
			t.Fatal(err)
		}
		if err := batch.VerifyBody(&h, bytes[segment.HeaderBytes:]); err != nil {
			t.Fatal(err)
		}
		want := replicate.Batch{
			Position: h.Position, FirstID: h.FirstID, Offset: at, Epoch: h.Epoch, Bytes: h.Size(), Count: h.Count,
			PrevCRC: h.PrevCRC, CRC: h.CRC,
		}
		if *b != want || at < r.Base || int64(b.End()-r.Base) > r.Capacity || b.End() < at {
			t.Fatalf("batch %d is %+v, want %+v, in %+v", i, *b, want, *r)
		}
		at, n, left = b.End(), n+b.Bytes, left-b.Bytes
	}
	if n != len(d.Body) || left != 0 || run != len(d.Runs)-1 {
		t.Fatalf("%d bytes of batches in %d, %d left in run %d of %d", n, len(d.Body), left, run, len(d.Runs))
	}
}
