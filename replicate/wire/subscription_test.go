package wire

import (
	"bytes"
	"errors"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/tests/support/formattest"
)

func testSubscribe() *Subscribe {
	return &Subscribe{
		Topic: uuid.UUID{1, 2, 3, 15: 16}, Channel: []byte("archive"), MsgTimeoutMs: 60000, WindowBytes: 1 << 20,
		SampleRate: 10,
		Tag:        []byte("eu"), Label: []byte(`{"client_id":"c"}`),
	}
}

func testConsumes() []Consume {
	return []Consume{
		{Kind: ConsumeReady, Seq: 7, Count: 2500},
		{Kind: ConsumeFinish, ID: 0x0001000000000203},
		{Kind: ConsumeRequeue, ID: 4, DelayMs: 1 << 40},
		{Kind: ConsumeTouch, ID: 5},
		{Kind: ConsumeCredit, Count: 1 << 18},
		{Kind: ConsumeStop},
	}
}

func testHeldConsumes() []Consume {
	return []Consume{{Kind: ConsumeSeen, Serial: 1 << 40}, {Kind: ConsumeReturn, ID: 6, Serial: 7}}
}

func testFailures() []Failure {
	return []Failure{{ID: 9, Kind: ConsumeFinish, Reason: 4}, {ID: 10, Kind: ConsumeTouch, Reason: 5}}
}

func testDelivered() []Delivered {
	return []Delivered{
		{ID: 1, Timestamp: -5, Attempts: 1, Body: []byte("plain")},
		{
			ID: 2, Timestamp: 1 << 60, Attempts: 32767,
			Headers: []segment.KV{{Key: []byte("key"), Value: []byte("k1")}, {Key: []byte("e"), Value: []byte{}}},
			Body:    []byte("b"),
		},
	}
}

func testSubscribeOnly() *Subscribe {
	s := testSubscribe()
	s.Only = 1<<16 - 3
	return s
}

// payloads has one payload of each kind.
func payloads() map[string][]byte {
	all := map[string][]byte{
		"sub-subscribe":      AppendSubscribe(nil, testSubscribe()),
		"sub-subscribe-only": AppendSubscribe(nil, testSubscribeOnly()),
	}
	for _, c := range testConsumes() {
		all["sub-consume"] = AppendConsume(all["sub-consume"], &c)
	}
	all["sub-consumed"] = AppendConsumed(nil, &Consumed{Seq: 7, InFlight: 12})
	for _, f := range testFailures() {
		all["sub-consumed"] = AppendFailure(all["sub-consumed"], &f)
	}
	for _, d := range testDelivered() {
		all["sub-deliver"] = AppendDelivered(all["sub-deliver"], &d)
	}
	for _, c := range testHeldConsumes() {
		all["sub-consume-held"] = AppendConsume(all["sub-consume-held"], &c)
	}
	return all
}

// Payloads of the first version are written the same way, and read back as the same values.
func TestGoldenSubscriptions(t *testing.T) {
	for name, p := range payloads() {
		formattest.Golden(t, filepath.Join("testdata", name+".hex"), p, *update)
	}
	all := payloads()
	s, err := DecodeSubscribe(all["sub-subscribe"])
	if err != nil || !reflect.DeepEqual(&s, testSubscribe()) {
		t.Errorf("%+v %v", s, err)
	}
	s, err = DecodeSubscribe(all["sub-subscribe-only"])
	if err != nil || !reflect.DeepEqual(&s, testSubscribeOnly()) {
		t.Errorf("%+v %v", s, err)
	}
	if got, err := consumes(all["sub-consume"]); err != nil || !reflect.DeepEqual(got, testConsumes()) {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := consumes(all["sub-consume-held"]); err != nil || !reflect.DeepEqual(got, testHeldConsumes()) {
		t.Errorf("%+v %v", got, err)
	}
	c, rest, err := DecodeConsumed(all["sub-consumed"])
	var failures []Failure
	for len(rest) > 0 {
		var f Failure
		f, rest = NextFailure(rest)
		failures = append(failures, f)
	}
	if err != nil || c != (Consumed{7, 12}) || !reflect.DeepEqual(failures, testFailures()) {
		t.Errorf("%+v %+v %v", c, failures, err)
	}
	got, err := delivered(all["sub-deliver"])
	want := testDelivered()
	want[0].Headers = nil
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	size := 0
	for i := range want {
		size += DeliveredBytes(&want[i])
	}
	if size != len(all["sub-deliver"]) {
		t.Errorf("%d bytes were foretold, %d written", size, len(all["sub-deliver"]))
	}
}

func consumes(p []byte) (all []Consume, err error) {
	for len(p) > 0 && err == nil {
		var c Consume
		if c, p, err = NextConsume(p); err == nil {
			all = append(all, c)
		}
	}
	return all, err
}

func delivered(p []byte) (all []Delivered, err error) {
	for len(p) > 0 && err == nil {
		var d Delivered
		if p, err = NextDelivered(p, &d); err == nil {
			all = append(all, d)
		}
	}
	return all, err
}

// A truncated payload is refused. If its entries stand back to back, the entries before the cut can be read.
func TestSubscriptionsCut(t *testing.T) {
	for name, p := range payloads() {
		for n := range p {
			var again []byte
			var err error
			switch name {
			case "sub-subscribe", "sub-subscribe-only":
				_, err = DecodeSubscribe(p[:n])
			case "sub-consume", "sub-consume-held":
				var all []Consume
				if all, err = consumes(p[:n]); err == nil {
					for i := range all {
						again = AppendConsume(again, &all[i])
					}
				}
			case "sub-consumed":
				_, again, err = DecodeConsumed(p[:n])
				again = append(p[:min(n, 8):min(n, 8)], again...)
			case "sub-deliver":
				var all []Delivered
				if all, err = delivered(p[:n]); err == nil {
					for i := range all {
						again = AppendDelivered(again, &all[i])
					}
				}
			}
			if err == nil && !bytes.Equal(again, p[:n]) || err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%s cut to %d of %d bytes: %v, written again % x", name, n, len(p), err, again)
			}
		}
	}
}

// The tables in FORMAT.md agree with the code.
func TestSubscriptionTables(t *testing.T) {
	found := formattest.Tables(t)
	end := 0
	for _, row := range found["Subscribe"] {
		size, err := strconv.Atoi(row[1])
		if err != nil || row[0] != strconv.Itoa(end) {
			t.Errorf("%s at %s, the field before ends at %d", row[2], row[0], end)
		}
		end += size
	}
	if end != subscribeBytes {
		t.Errorf("a Subscribe has %d bytes, the code says %d", end, subscribeBytes)
	}
	if n := len(found["Consume"]); n != len(consumeBytes)-1 {
		t.Errorf("%d entries, the code has %d", n, len(consumeBytes)-1)
	}
	for i, row := range found["Consume"] {
		if row[0] != strconv.Itoa(i+1) || row[1] != strconv.Itoa(consumeBytes[i+1]) {
			t.Errorf("%s is %s with %s bytes, the code says %d", row[2], row[0], row[1], consumeBytes[i+1])
		}
	}
}

// Any bytes are either refused, or read and written again as they were.
func FuzzSubscription(f *testing.F) {
	for _, p := range payloads() {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var again []byte
		if s, err := DecodeSubscribe(p); err == nil && !bytes.Equal(AppendSubscribe(nil, &s), p) {
			t.Errorf("subscribe: %+v", s)
		}
		if all, err := consumes(p); err == nil {
			for i := range all {
				again = AppendConsume(again, &all[i])
			}
			if !bytes.Equal(again, p) {
				t.Errorf("consume: %+v", all)
			}
		}
		if c, rest, err := DecodeConsumed(p); err == nil {
			again = AppendConsumed(nil, &c)
			for len(rest) > 0 {
				var x Failure
				x, rest = NextFailure(rest)
				again = AppendFailure(again, &x)
			}
			if !bytes.Equal(again, p) {
				t.Errorf("consumed: %+v", c)
			}
		}
		if all, err := delivered(p); err == nil {
			again = again[:0]
			for i := range all {
				again = AppendDelivered(again, &all[i])
			}
			if !bytes.Equal(again, p) {
				t.Errorf("deliver: %+v", all)
			}
		}
	})
}
