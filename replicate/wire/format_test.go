package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/netproto"
	"penstock/replicate"
)

var update = flag.Bool("update", false, "rewrite golden files")

// tables returns the rows of every table of FORMAT.md by the heading above it.
func tables(t *testing.T) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][][]string)
	heading := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if h, ok := strings.CutPrefix(line, "#"); ok {
			heading = strings.TrimSpace(strings.TrimLeft(h, "#"))
		}
		if cells, ok := strings.CutPrefix(line, "|"); ok && !strings.HasPrefix(line, "|---") {
			row := strings.Split(strings.TrimSuffix(cells, "|"), "|")
			for i := range row {
				row[i] = strings.TrimSpace(row[i])
			}
			found[heading] = append(found[heading], row)
		}
	}
	for h := range found {
		found[h] = found[h][1:] // column names
	}
	return found
}

func TestFormatTables(t *testing.T) {
	found := tables(t)
	for _, c := range []struct {
		heading string
		size    int
		offsets []int
	}{
		{"Head", CommonBytes, []int{offTopic, offPartition, offCode, offFlags, offRunCount, offReserved, offEpoch, offRequest}},
		{"State", stateBytes, []int{
			offStateNext, offStateNextID, offStateEnd, offStateEpoch, offStateBase, offStateCapacity, offStateLastCRC, offStateSegment,
		}},
		{"Run", runBytes, []int{offRunSegment, offRunBytes, offRunBase, offRunCapacity}},
	} {
		rows := found[c.heading]
		if len(rows) != len(c.offsets) {
			t.Fatalf("%s: %d rows, %d fields", c.heading, len(rows), len(c.offsets))
		}
		end := 0
		for i, row := range rows {
			if row[0] != strconv.Itoa(c.offsets[i]) || c.offsets[i] != end {
				t.Errorf("%s: %s at %s, the code says %d, the field before ends at %d", c.heading, row[2], row[0], c.offsets[i], end)
			}
			size, err := strconv.Atoi(row[1])
			if err != nil {
				t.Fatal(err)
			}
			end += size
		}
		if end != c.size {
			t.Errorf("%s ends at %d, the code says %d", c.heading, end, c.size)
		}
	}
	limits := map[string]int{
		"CommonBytes": CommonBytes, "MaxRunCount": MaxRunCount, "MaxBatchCount": MaxBatchCount,
		"MaxBatchHeadBytes": MaxBatchHeadBytes, "MaxHeadBytes": MaxHeadBytes,
	}
	for _, row := range found["Limits"] {
		if row[1] != strconv.Itoa(limits[row[0]]) {
			t.Errorf("%s is %s, the code says %d", row[0], row[1], limits[row[0]])
		}
		delete(limits, row[0])
	}
	if len(limits) > 0 {
		t.Errorf("not in FORMAT.md: %v", limits)
	}
	if MaxBatchHeadBytes > netproto.MaxHeadBytes {
		t.Errorf("a head of %d bytes before batches, frames have room for %d", MaxBatchHeadBytes, netproto.MaxHeadBytes)
	}
}

var bodiless = map[string]field{"damaged": usesDamaged, "code": usesCode}

// fieldsByName reads the table of fields: their order there is their order in a head.
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
	found := tables(t)
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

// A kind carries what package replicate says that it uses, and nothing else.
func TestFieldsOfKinds(t *testing.T) {
	text, err := os.ReadFile("../types.go")
	if err != nil {
		t.Fatal(err)
	}
	names := fieldsByName(t, tables(t)["Fields"])
	kinds := make(map[string]replicate.MessageKind)
	for _, row := range tables(t)["Types"] {
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

// A frame of every kind, as it was written by the first version, is written the same way and read as what it was.
func TestGoldenFrames(t *testing.T) {
	all := messages(t)
	if len(all) != kindCount-1 {
		t.Fatalf("%d golden frames, %d kinds", len(all), kindCount-1)
	}
	for name, m := range all {
		t.Run(name, func(t *testing.T) {
			h, payload := sent(t, m)
			frame := make([]byte, netproto.HeaderBytes, netproto.HeaderBytes+len(payload))
			h.Marshal(frame)
			frame = append(frame, payload...)
			frame = golden(t, name, frame)
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

// golden returns the bytes of a golden file, which must be p.
func golden(t *testing.T, name string, p []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	if *update {
		if err := os.WriteFile(path, []byte(hexLines(p)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, p) {
		t.Fatalf("the code writes\n%swhere %s has\n%s", hexLines(p), path, text)
	}
	return stored
}

// The example of FORMAT.md is the golden heartbeat.
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

func hexLines(p []byte) string {
	var b strings.Builder
	for line := range slices.Chunk(p, 16) {
		fmt.Fprintf(&b, "% x\n", line)
	}
	return b.String()
}
