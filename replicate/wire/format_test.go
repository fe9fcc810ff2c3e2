package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/tests/support/formattest"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

func TestFormatTables(t *testing.T) {
	found := formattest.Tables(t)
	formattest.Layout(t, found["Head"], CommonBytes,
		offTopic, offPartition, offCode, offFlags, offRunCount, offReserved, offEpoch, offRequest)
	formattest.Layout(t, found["State"], stateBytes,
		offStateNext, offStateNextID, offStateEnd, offStateEpoch, offStateBase, offStateCapacity, offStateLastCRC,
		offStateSegment)
	formattest.Layout(t, found["Run"], runBytes, offRunSegment, offRunBytes, offRunBase, offRunCapacity)
	formattest.Numbers(t, found["Limits"], map[string]int{
		"CommonBytes": CommonBytes, "MaxRunCount": MaxRunCount, "MaxBatchCount": MaxBatchCount,
		"MaxBatchHeadBytes": MaxBatchHeadBytes, "MaxHeadBytes": MaxHeadBytes,
	})
	if MaxBatchHeadBytes > netproto.MaxHeadBytes {
		t.Errorf("a head of %d bytes before batches, frames have room for %d", MaxBatchHeadBytes, netproto.MaxHeadBytes)
	}
}

var bodiless = map[string]field{"damaged": usesDamaged, "code": usesCode}

// fieldsByName reads the table of fields. Its order is their order in a head.
func fieldsByName(t *testing.T, rows [][]string) map[string]field {
	t.Helper()
	if len(rows) != fieldCount {
		t.Fatalf("%d fields, the code has %d", len(rows), fieldCount)
	}
	names := make(map[string]field)
	for i, row := range rows {
		if row[0] != strconv.Itoa(fieldBytes[i]) {
			t.Errorf("%s has %s bytes, the code says %d", row[1], row[0], fieldBytes[i])
		}
		names[row[1]] = 1 << i
	}
	for name, f := range bodiless {
		names[name] = f
	}
	return names
}

func TestFormatTypes(t *testing.T) {
	found := formattest.Tables(t)
	names := fieldsByName(t, found["Fields"])
	if n := len(found["Types"]); n != kindCount-1 {
		t.Errorf("%d types, the code has %d", n, kindCount-1)
	}
	for _, row := range found["Types"] {
		n, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		kind, ok := Kind(netproto.Type(n))
		if !ok || Type(kind) != netproto.Type(n) || netproto.Type(n).String() != row[1] {
			t.Fatalf("type %d %s: the code says %v, kind %d", n, row[1], netproto.Type(n), kind)
		}
		var fields field
		for _, name := range strings.Fields(row[3]) {
			if names[name] == 0 {
				t.Errorf("%s: no field %q", row[1], name)
			}
			fields |= names[name]
		}
		if fields != layouts[kind].fields {
			t.Errorf("%s has the fields %b, the code says %b", row[1], fields, layouts[kind].fields)
		}
	}
	for n := range 256 {
		if kind, ok := Kind(netproto.Type(n)); ok && Type(kind) != netproto.Type(n) {
			t.Errorf("type %d is kind %d, whose type is %v", n, kind, Type(kind))
		}
	}
}

// A kind carries the fields that package replicate documents for it, and no others.
func TestFieldsOfKinds(t *testing.T) {
	text, err := os.ReadFile("../types.go")
	if err != nil {
		t.Fatal(err)
	}
	names := fieldsByName(t, formattest.Tables(t)["Fields"])
	kinds := make(map[string]replicate.MessageKind)
	for _, row := range formattest.Tables(t)["Types"] {
		n, _ := strconv.Atoi(row[0])
		kinds[row[2]], _ = Kind(netproto.Type(n))
	}
	seen := 0
	for _, m := range regexp.MustCompile(`(?m)^\tMsg(\w+)\s+//(.*)$`).FindAllStringSubmatch(string(text), -1) {
		seen++
		kind, ok := kinds[m[1]]
		if !ok {
			t.Errorf("no type carries Msg%s", m[1])
			continue
		}
		var want field
		list, _, _ := strings.Cut(regexp.MustCompile(`\(.*?\)`).ReplaceAllString(m[2], ""), ":")
		for word := range strings.SplitSeq(list, ",") {
			word = strings.TrimSpace(word)
			for name, f := range names {
				if strings.EqualFold(name, word) {
					want |= f
				}
			}
		}
		if want != layouts[kind].fields {
			t.Errorf("Msg%s uses %b, its frame carries %b:%s", m[1], want, layouts[kind].fields, m[2])
		}
	}
	if seen != kindCount-1 {
		t.Errorf("%d kinds found, there are %d", seen, kindCount-1)
	}
}

// Frames of every kind, as the first version wrote them, are written the same way and read back as the same messages.
func TestGoldenFrames(t *testing.T) {
	all := messages(t)
	if len(all) != kindCount { // a Report has two layouts
		t.Fatalf("%d golden frames, %d kinds", len(all), kindCount-1)
	}
	for name, m := range all {
		t.Run(name, func(t *testing.T) {
			h, payload := sent(t, m)
			frame := make([]byte, netproto.HeaderBytes, netproto.HeaderBytes+len(payload))
			h.Marshal(frame)
			frame = append(frame, payload...)
			frame = formattest.Golden(t, filepath.Join("testdata", name+".hex"), frame, *update)
			h, err := netproto.ParseHeader(frame)
			if err != nil {
				t.Fatal(err)
			}
			var d Decoder
			if err := d.Decode(&h, frame[netproto.HeaderBytes:]); err != nil {
				t.Fatal(err)
			}
			if d.ID != testID || !reflect.DeepEqual(&d.Message, m) {
				t.Fatalf("read as %v %+v\nwant %v %+v", d.ID, d.Message, testID, *m)
			}
		})
	}
}

// The example in FORMAT.md is the golden heartbeat.
func TestFormatExample(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```\n")
	var want []byte
	for line := range strings.Lines(example) {
		for word := range strings.FieldsSeq(line) {
			if b, err := hex.DecodeString(word); err == nil && len(b) == 1 {
				want = append(want, b[0])
			}
		}
	}
	if _, payload := sent(t, messages(t)["heartbeat"]); !bytes.Equal(payload, want) {
		t.Errorf("the example is % x\nthe code writes % x", want, payload)
	}
}
