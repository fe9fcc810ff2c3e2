package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
	"penstock/tests/support/formattest"
)

func testSettings() fold.ChannelSettings {
	return fold.ChannelSettings{Version: 3, Order: fold.OrderKey, KeyHeader: "k", MaxAttempts: 5, MaxInFlight: 7}
}

// operations has an operation with every field, one without fields, and each type of result with every field.
func operations() map[string]any {
	settings, attempts := testSettings(), uint16(3)
	at := time.Date(2026, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
	return map[string]any{
		"fwd-op": &Operation{
			Kind: OpSeek, Topic: uuid.UUID{1, 2, 3, 15: 16}, Channel: "c", Flag: true,
			Seek:    &SeekTo{Kind: SeekTime, ID: batch.MakeID(1, 2), Time: at, Count: -3},
			Targets: []batch.ID{batch.MakeID(1, 515), 7}, IDs: []batch.ID{8},
			Peek: &PeekRequest{
				From: 9, Count: 10, OriginTopic: "t<1>", OriginChannel: "c1", Next: []batch.ID{0, batch.MakeID(1, 11)},
			},
			Count: 12, Verify: &VerifyRequest{At: 4096, To: 8192, Max: 1 << 20}, Settings: &settings,
			Known: 4, Partitions: []uint32{0, 3},
		},
		"fwd-op-small": &Operation{Kind: OpFaults},
		"fwd-op-producer": &Operation{
			Kind: OpOpenProducer, Topic: uuid.UUID{1, 2, 3, 15: 16}, Producer: "shop-7", Known: 4, Partitions: []uint32{3},
		},
		"fwd-op-opened": &ProducerOpened{ID: 1<<63 + 5, Epoch: 3, Sequence: 1 << 31},
		"fwd-op-ask":    &Operation{Kind: OpAsk, Ask: json.RawMessage(`{"what":"x"}`)},
		"fwd-op-ids":    []batch.ID{batch.MakeID(3, 515), 7},
		"fwd-op-done":   true,
		"fwd-op-peeked": []PeekedMessage{{
			ID: batch.MakeID(2, 5), Timestamp: at, Due: at.Add(time.Second), BodyBytes: 4, Truncated: true,
			Headers: []segment.KV{{Key: []byte("key"), Value: []byte("k1")}}, Body: []byte{0, 0xff, '<'},
		}, {}},
		"fwd-op-pending": []PendingMessage{{
			ID: batch.MakeID(2, 5), Since: at, Due: at.Add(time.Minute), Attempts: 2, Client: "10.0.0.1:4711",
		}, {}},
		"fwd-op-deletion": &Deletion{Deleted: true, Gone: true, AgoMs: 1200},
		"fwd-op-settings": settings,
		"fwd-op-state": &TopicState{Paused: true, Channels: []ChannelState{
			{Name: "c", Paused: true, Skipped: true, Settings: settings}, {Name: "d"},
		}},
		"fwd-op-state-ephemeral": &TopicState{Ephemeral: 2},
		"fwd-op-verify": &VerifyAnswer{
			Start: 1, Committed: 2, Next: 3, Sum: 4, First: 5, Count: 6, Damaged: 7, Bad: true, BadFrom: 8, BadTo: 9,
		},
		"fwd-op-copy": &CopyAnswer{
			End: 1, NextID: 2, Epoch: 3, Committed: 4, Written: at, Leads: true, Damaged: true, Contested: true,
			Shortened: true,
		},
		"fwd-op-trace": &Trace{
			ID: "0002000000000005", Partition: 2, Number: 5, LogFrom: 1, LogSince: at, ReadBytes: 2, Settled: true, Cut: "bytes",
			Stored: &TraceStored{
				At: at, Published: at, Due: at, Offset: 3, Batch: 4, Index: 5, InBatch: 6, Epoch: 7, Leader: "n1", BodyBytes: 8,
				Headers: 9, Carried: true,
			},
			Events: []TraceEvent{{
				At: at, Kind: fold.TraceDeferred, Channel: "c", Due: at, Attempts: &attempts, Offset: 10, Batch: 11, Epoch: 12,
				Leader: "n2", Open: true,
			}, {}},
			Channels: []TraceChannel{{
				Channel: "c", State: fold.StateDead, At: at, Epoch: 13, Leader: "n3", OlderThanLog: true, Attempts: &attempts,
				Due: at, Client: "k", DeadLetterTopic: "t.DLQ", DeadLetterAt: at,
			}, {}},
		},
		"fwd-op-producers": &ProducerList{
			Producers: []KnownProducer{{
				Name: "shop-7", Owner: "\x01ownerownerowner0", Partition: 3, Epoch: 2, Tenure: 1 << 40, Sequence: 7, Used: at,
			}, {}},
			Nameless: 5, More: true,
		},
		"fwd-op-clock":  &ClockAnswer{NowNs: at.UnixNano()},
		"fwd-op-faults": []Fault{{Name: "disk_full", Count: 1, Words: "the disk is full"}},
	}
}

// Operations from before this package had them are written the same way, and read back as the same values.
func TestGoldenOperations(t *testing.T) {
	for name, v := range operations() {
		p, err := EncodeResult(v, nil)
		if op, ok := v.(*Operation); ok {
			p, err = EncodeOperation(op)
		}
		if err != nil {
			t.Fatal(err)
		}
		stored := formattest.Golden(t, filepath.Join("testdata", name+".hex"), p, *update)
		back := reflect.New(reflect.TypeOf(v))
		if err := DecodeResult(stored, back.Interface()); err != nil || !reflect.DeepEqual(back.Elem().Interface(), v) {
			t.Errorf("%s is read as %+v: %v", name, back.Elem(), err)
		}
		if op, ok := v.(*Operation); ok {
			if got, err := DecodeOperation(stored); err != nil || !reflect.DeepEqual(&got, op) {
				t.Errorf("%s is read as %+v: %v", name, got, err)
			}
		}
	}
}

// A newer node may send fields and kinds that this version does not know.
func TestOperationOfANewerVersion(t *testing.T) {
	op, err := DecodeOperation([]byte(`{"kind":"rename-channel","channel":"c","colour":"red","partitions":[2]}`))
	if err != nil || op.Kind != "rename-channel" || op.Channel != "c" || !op.About(2) || op.About(1) {
		t.Errorf("it is read as %+v: %v", op, err)
	}
}

func TestOperationRefuses(t *testing.T) {
	long := append(bytes.Repeat([]byte{' '}, MaxOperationBytes-1), "{}"...)
	for _, p := range [][]byte{nil, []byte("{"), []byte("[]"), []byte(`{"count":"x"}`), long} {
		if _, err := DecodeOperation(p); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes are read as an operation: %v", len(p), err)
		}
	}
	if _, err := DecodeOperation(long[1:]); err != nil {
		t.Errorf("an operation of %d bytes: %v", MaxOperationBytes, err)
	}
}

// The tables in FORMAT.md have every name, in the order in which the code writes them.
func TestFormatOperations(t *testing.T) {
	tables := formattest.Tables(t)
	for heading, v := range map[string]any{
		"Operation": Operation{}, "SeekTo": SeekTo{}, "PeekRequest": PeekRequest{}, "PeekedMessage": PeekedMessage{},
		"PendingMessage": PendingMessage{}, "ProducerOpened": ProducerOpened{}, "ProducerList": ProducerList{},
		"KnownProducer": KnownProducer{}, "Deletion": Deletion{},
		"RedriveClaim": RedriveClaim{},
		"TopicState":   TopicState{}, "ChannelState": ChannelState{}, "VerifyRequest": VerifyRequest{},
		"VerifyAnswer": VerifyAnswer{}, "CopyAnswer": CopyAnswer{},
		"ClockAnswer": ClockAnswer{},
		"Fault":       Fault{},
		"Trace":       Trace{}, "TraceStored": TraceStored{}, "TraceEvent": TraceEvent{}, "TraceChannel": TraceChannel{},
	} {
		typ, rows := reflect.TypeOf(v), tables[heading]
		if len(rows) != typ.NumField() {
			t.Errorf("%s: %d rows, %d fields", heading, len(rows), typ.NumField())
			continue
		}
		for i, row := range rows {
			name, omit, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if row[0] != name || (row[1] == "zero") != (omit != "") {
				t.Errorf("%s: FORMAT.md says %q, the code says %q %q", heading, row[:2], name, omit)
			}
		}
	}
	kinds := []OperationKind{
		OpCreateChannel, OpDeleteChannel, OpPauseChannel, OpSkipChannel, OpEmptyChannel, OpPauseTopic, OpEmptyTopic,
		OpResolveSeek, OpSeek, OpPeek, OpPending, OpDeferred, OpConfirm, OpRedrive, OpSettings, OpConfigure,
		OpState, OpVerify, OpFaults, OpTrace, OpOpenProducer, OpAsk, OpCopy, OpClock,
		OpProducers, OpRemoveProducer,
	}
	rows := tables["Kinds of operations"]
	if len(rows) != len(kinds) {
		t.Fatalf("%d kinds in FORMAT.md, %d in the code", len(rows), len(kinds))
	}
	for i, row := range rows {
		if row[0] != string(kinds[i]) {
			t.Errorf("kind %s stands where the code has %s", row[0], kinds[i])
		}
	}
}

func FuzzDecodeOperation(f *testing.F) {
	for _, v := range operations() {
		p, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		op, err := DecodeOperation(p)
		if err != nil {
			return
		}
		if _, err := EncodeOperation(&op); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}
