package wire

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"penstock/tests/support/formattest"
)

func testFence() *Fence { return &Fence{Topic: uuid.UUID{1, 2, 3, 15: 16}, Partition: 7, Epoch: 9} }

func heldPayloads() map[string][]byte {
	deliver := AppendHeldHead(nil, &HeldHead{Stamp: 1 << 50, HoldMs: 1500})
	for i, d := range testDelivered() {
		deliver = AppendDelivered(AppendHeld(deliver, &Held{Epoch: 5, Serial: uint64(i) + 1}), &d)
	}
	return map[string][]byte{
		"sub-stamp": AppendStamp(nil, 1<<50), "sub-deliver-held": deliver, "sub-fence": AppendFence(nil, testFence()),
	}
}

// rewrite decodes a payload of heldPayloads and encodes it again.
func rewrite(name string, p []byte) (again []byte, err error) {
	switch name {
	case "sub-stamp":
		ns, err := DecodeStamp(p)
		return AppendStamp(nil, ns), err
	case "sub-fence":
		f, err := DecodeFence(p)
		return AppendFence(nil, &f), err
	}
	head, p, err := DecodeHeldHead(p)
	if err != nil {
		return nil, err
	}
	again = AppendHeldHead(nil, &head)
	for len(p) > 0 {
		var h Held
		var d Delivered
		if h, p, err = NextHeld(p); err != nil {
			return nil, err
		}
		if len(p) == 0 {
			return nil, invalid("no message")
		}
		if p, err = NextDelivered(p, &d); err != nil {
			return nil, err
		}
		again = AppendDelivered(AppendHeld(again, &h), &d)
	}
	return again, nil
}

// Payloads of the first version with feature level 2 are written the same way and read back as the same values; a
// truncated payload is refused.
func TestGoldenHeld(t *testing.T) {
	for name, p := range heldPayloads() {
		formattest.Golden(t, filepath.Join("testdata", name+".hex"), p, *update)
		for n := range len(p) + 1 {
			again, err := rewrite(name, p[:n])
			if err == nil && !bytes.Equal(again, p[:n]) || err != nil && !errors.Is(err, ErrInvalid) ||
				n == len(p) && err != nil {
				t.Errorf("%s, %d of %d bytes: %v, written again % x", name, n, len(p), err, again)
			}
		}
	}
	if f, err := DecodeFence(AppendFence(nil, testFence())); err != nil || f != *testFence() {
		t.Errorf("%+v %v", f, err)
	}
}

// Any bytes are either refused, or read and written again as they were.
func FuzzHeld(f *testing.F) {
	for _, p := range heldPayloads() {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		for name := range heldPayloads() {
			if again, err := rewrite(name, p); err == nil && !bytes.Equal(again, p) {
				t.Errorf("%s: % x", name, again)
			}
		}
	})
}
