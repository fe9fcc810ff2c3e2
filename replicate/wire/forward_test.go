package wire

import (
	"bytes"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/tests/support/formattest"
)

func testPutHead(kind PutKind, delayMs, count uint32) *PutHead {
	return &PutHead{Topic: uuid.UUID{1, 2, 3, 15: 16}, Partition: 7, DelayMs: delayMs, Run: 9, Kind: kind, Count: count}
}

func testPutHeaders() []segment.KV {
	return []segment.KV{{Key: []byte("key"), Value: []byte("k1")}, {Key: []byte("e"), Value: []byte{}}}
}

func testPutNumbers() *PutNumbers {
	return &PutNumbers{Name: []byte("shop-7"), Tenure: 3, Sequence: 1 << 31}
}

func testPutTaken() *PutNumbers {
	return &PutNumbers{Name: []byte("shop-7"), Tenure: 1_700_000_000_000 << 20, Sequence: 1 << 31}
}

// forwards has one payload of each kind.
func forwards() map[string][]byte {
	plain := AppendPutHead(nil, testPutHead(PutMessages, 1500, 2))
	plain = AppendPutBody(AppendPutBody(plain, []byte("one")), []byte("2"))
	headered := AppendPutHead(nil, testPutHead(PutHeadered, 0, 2))
	headered = AppendPutBody(AppendPutHeaders(headered, testPutHeaders()), []byte("one"))
	headered = AppendPutBody(AppendPutHeaders(headered, nil), []byte("2"))
	numbered := AppendPutHead(nil, testPutHead(PutNumbered, 0, 2))
	numbered = AppendPutNumbers(numbered, testPutNumbers())
	numbered = AppendPutBody(AppendPutHeaders(numbered, testPutHeaders()), []byte("one"))
	numbered = AppendPutBody(AppendPutHeaders(numbered, nil), []byte("2"))
	taken := AppendPutHead(nil, testPutHead(PutTaken, 0, 1))
	taken = AppendPutNumbers(taken, testPutTaken())
	taken = AppendPutBody(AppendPutHeaders(taken, nil), []byte("one"))
	waits := testPutHead(PutMessages, 1500, 1)
	waits.WaitMs = 0x0a0b0c
	return map[string][]byte{
		"fwd-put-wait":    AppendPutBody(AppendPutHead(nil, waits), []byte("one")),
		"fwd-put-numbers": numbered,
		"fwd-put-taken":   taken,
		"fwd-put-ask":     AppendPutHead(nil, testPutHead(PutAsk, 0, 0)),
		"fwd-put":         plain,
		"fwd-put-headers": headered,
		"fwd-put-sealed":  append(AppendPutHead(nil, testPutHead(PutSealed, 0, 1)), "a sealed batch"...),
		"fwd-ack-sequence": AppendPutAck(nil, &PutAck{
			First: AckSequence(17, true), Reason: uint8(ReasonSequence),
		}),
		"fwd-ack-text": AppendPutAck(nil, &PutAck{Reason: uint8(ReasonQuota), Text: "4 of 3"}),
		"fwd-ack":      AppendPutAck(nil, &PutAck{First: 0x0007000000000203, Reason: uint8(ReasonQuota)}),
	}
}

// Payloads from before this package had them are written the same way, and read back as the same values.
func TestGoldenForwards(t *testing.T) {
	all := forwards()
	for name, p := range all {
		formattest.Golden(t, filepath.Join("testdata", name+".hex"), p, *update)
	}
	h, rest, err := DecodePutHead(all["fwd-put-headers"])
	if err != nil || h != *testPutHead(PutHeadered, 0, 2) {
		t.Fatalf("the head is read as %+v: %v", h, err)
	}
	for _, want := range []struct {
		headers []segment.KV
		body    string
	}{{testPutHeaders(), "one"}, {nil, "2"}} {
		var headers []segment.KV
		var body []byte
		if headers, rest, err = NextPutHeaders(nil, rest); err != nil || !reflect.DeepEqual(headers, want.headers) {
			t.Fatalf("the headers are read as %q: %v", headers, err)
		}
		if body, rest, err = NextPutBody(rest); err != nil || string(body) != want.body {
			t.Fatalf("the body is read as %q: %v", body, err)
		}
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes are left", len(rest))
	}
	if h, _, err = DecodePutHead(all["fwd-put-wait"]); err != nil || h.WaitMs != 0x0a0b0c || h.Kind != PutMessages {
		t.Fatalf("the head of a put that may wait is read as %+v: %v", h, err)
	}
	if h, rest, err = DecodePutHead(all["fwd-put-numbers"]); err != nil || h.Kind != PutNumbered {
		t.Fatalf("the head is read as %+v: %v", h, err)
	}
	n, rest, err := NextPutNumbers(rest, h.Kind)
	if err != nil || !reflect.DeepEqual(&n, testPutNumbers()) {
		t.Errorf("the numbers are read as %+v: %v", n, err)
	}
	if headers, _, err := NextPutHeaders(nil, rest); err != nil || !reflect.DeepEqual(headers, testPutHeaders()) {
		t.Errorf("the headers behind them are read as %q: %v", headers, err)
	}
	_, rest, err = DecodePutHead(all["fwd-put-taken"])
	if err != nil {
		t.Fatal(err)
	}
	n, rest, err = NextPutNumbers(rest, PutTaken)
	if err != nil || !reflect.DeepEqual(&n, testPutTaken()) || len(rest) != 11 {
		t.Errorf("the numbers under a tenure are read as %+v: %v, with %d bytes behind them", n, err, len(rest))
	}
	ack, err := DecodePutAck(all["fwd-ack-sequence"])
	if want, other, ok := SequenceOfAck(ack.First); err != nil || want != 17 || !other || !ok {
		t.Errorf("the numbers of a refusal are read as %d, %v, %v: %v", want, other, ok, err)
	}
	if _, _, ok := SequenceOfAck(0); ok {
		t.Error("an older leader's refusal has numbers")
	}
	a, err := DecodePutAck(append(all["fwd-ack"], 0)) // with a byte that a later version may add
	if err != nil || a != (PutAck{0x0007000000000203, uint8(ReasonQuota), ""}) {
		t.Errorf("the answer is read as %+v: %v", a, err)
	}
	text := all["fwd-ack-text"]
	for _, p := range [][]byte{text, append(slices.Clone(text), 0)} {
		if a, err := DecodePutAck(p); err != nil || a != (PutAck{0, uint8(ReasonQuota), "4 of 3"}) {
			t.Errorf("an answer with a text is read as %+v: %v", a, err)
		}
	}
	if a, err := DecodePutAck(text[:len(text)-1]); err != nil || a != (PutAck{0, uint8(ReasonQuota), ""}) {
		t.Errorf("an answer whose text is cut off is read as %+v: %v", a, err)
	}
	long := strings.Repeat("x", MaxAckTextBytes-1) + "é"
	if a, err := DecodePutAck(AppendPutAck(nil, &PutAck{Text: long})); err != nil || a.Text != long[:MaxAckTextBytes-1] {
		t.Errorf("a long text is read as %d bytes: %v", len(a.Text), err)
	}
}

func TestForwardRefusesWhatIsCutOff(t *testing.T) {
	all := forwards()
	for n := range PutHeadBytes {
		if _, _, err := DecodePutHead(all["fwd-put"][:n]); !errors.Is(err, ErrInvalid) {
			t.Errorf("a head of %d bytes is read: %v", n, err)
		}
	}
	for n := range PutAckBytes {
		if _, err := DecodePutAck(all["fwd-ack"][:n]); !errors.Is(err, ErrInvalid) {
			t.Errorf("an answer of %d bytes is read: %v", n, err)
		}
	}
	body := AppendPutBody(nil, []byte("one"))
	for n := range body {
		if _, _, err := NextPutBody(body[:n]); !errors.Is(err, ErrInvalid) {
			t.Errorf("a body of %d bytes is read: %v", n, err)
		}
	}
	headers := AppendPutHeaders(nil, testPutHeaders())
	for n := range headers {
		if _, _, err := NextPutHeaders(nil, headers[:n]); !errors.Is(err, ErrInvalid) {
			t.Errorf("headers of %d bytes are read: %v", n, err)
		}
	}
	for _, m := range []*PutNumbers{testPutNumbers(), testPutTaken()} {
		numbers := AppendPutNumbers(nil, m)
		for n := range numbers {
			if _, _, err := NextPutNumbers(numbers[:n], m.Kind()); !errors.Is(err, ErrInvalid) {
				t.Errorf("the numbers of a producer in %d bytes are read: %v", n, err)
			}
		}
	}
	many := AppendPutHeaders(nil, make([]segment.KV, segment.MaxHeaderCount+1))
	if _, _, err := NextPutHeaders(nil, many); !errors.Is(err, ErrInvalid) {
		t.Errorf("%d headers are read: %v", segment.MaxHeaderCount+1, err)
	}
	if _, _, err := NextPutBody([]byte{0xff, 0xff, 0xff, 0xff, 1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a body of 4 GiB is read: %v", err)
	}
}

// A slice that was read from a message begins in its own bytes and cannot grow into the next message.
func TestForwardBorrows(t *testing.T) {
	p := AppendPutBody(AppendPutBody(nil, []byte("one")), []byte("2"))
	body, rest, err := NextPutBody(p)
	if err != nil {
		t.Fatal(err)
	}
	_ = append(body, 'x')
	if next, _, err := NextPutBody(rest); err != nil || !bytes.Equal(next, []byte("2")) {
		t.Errorf("the next body is %q: %v", next, err)
	}
}

func TestFormatForwards(t *testing.T) {
	formattest.Layout(t, formattest.Tables(t)["ForwardPut"], PutHeadBytes,
		offPutTopic, offPutPartition, offPutDelay, offPutRun, offPutKind, offPutWait, offPutCount)
	kinds := map[string]PutKind{"bodies": PutMessages, "sealed": PutSealed, "headers": PutHeadered}
	kinds["numbered"], kinds["taken"], kinds["ask"] = PutNumbered, PutTaken, PutAsk
	for _, row := range formattest.Tables(t)["Kinds of puts"] {
		if k, ok := kinds[row[1]]; !ok || row[0] != strconv.Itoa(int(k)) {
			t.Errorf("kind %s is %s, the code says %d", row[1], row[0], k)
		}
		delete(kinds, row[1])
	}
	if len(kinds) > 0 {
		t.Errorf("not in FORMAT.md: %v", kinds)
	}
}
