package publish

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/message"
)

// Objects of plain strings are parsed in place, and all others by the JSON package. Where both parsers apply they must
// agree, which FuzzExt checks.
func TestPlainExt(t *testing.T) {
	long := make([]string, message.MaxHeaderCount+1)
	for i := range long {
		long[i] = fmt.Sprintf(`"%d":""`, i)
	}
	for ext, plain := range map[string]bool{
		``: true, `{}`: true, `{"a":"b"}`: true, " {\t\"a\" : \"b\" ,\r\n\"c\":\"\" } \n": true, `{"ä":"ö"}`: true,
		`{"##trace_id":"18446744073709551615"}`: true, `{"##client_dispatch_tag":"x"}`: true,
		"{" + strings.Join(long[1:], ",") + "}": true,

		`{"a":1}`: false, `{"a":"\n"}`: false, `{"\u0061":"b"}`: false, `{"a":"b","a":"c"}`: false,
		`{"##trace_id":"x"}`: false, `{"##json":"[]"}`: false,
		`{"##client_dispatch_tag":"x","tag":"y"}`: false, "{\"a\":\"\xff\"}": false, "{\"a\":\"\x01\"}": false,
		`{"a":"b"`: false, `{"a":"b",}`: false,
		`{"a":"b"}}`: false, `{"a":"b"} {}`: false, `{"a"}`: false, `{,}`: false, `[]`: false, `{"a":"b`: false,
		"{" + strings.Join(long, ",") + "}": false,
	} {
		before := []node.Header{{Key: []byte("of another")}}
		headers, _, _, ok := AppendPlainExt(before, []byte(ext))
		if ok != plain || len(headers) < 1 || string(headers[0].Key) != "of another" || !ok && len(headers) != 1 {
			t.Errorf("%.100q: plain %v, want %v; %q", ext, ok, plain, headers)
		}
	}
	for at := range 20 { // every byte at every position
		for c := range 256 {
			value := bytes.Repeat([]byte{'x'}, 20)
			value[at] = byte(c)
			plain := c >= ' ' && c < 0x80 && c != '"' && c != '\\'
			headers, _, _, ok := AppendPlainExt(nil, append(append([]byte(`{"a":"`), value...), `"}`...))
			if ok != plain || ok && !bytes.Equal(headers[0].Value, value) {
				t.Fatalf("byte %#x at %d: %v %q", c, at, ok, headers)
			}
		}
	}
	if _, _, _, err := decodeExt([]byte("{" + strings.Join(long, ",") + "}")); err == nil ||
		!strings.Contains(err.Error(), "248") {
		t.Errorf("too many members: %v", err)
	}
}

// Headers cost no allocation, neither when they are read from an ext nor when they are written into one.
func TestExtDoesNotAllocate(t *testing.T) {
	ext := []byte(`{"header-000":"000000000001","header-001":"000000000002",` +
		`"##client_dispatch_tag":"red","##trace_id":"12345678901"}`)
	var headers []node.Header
	var out []byte
	if n := testing.AllocsPerRun(100, func() {
		headers, _, _, _ = AppendExtHeaders(headers[:0], ext)
		out = AppendExt(out[:0], headers)
	}); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
	if string(out) != string(ext) {
		t.Errorf("comes back as %s", out)
	}
}

// BenchmarkExt parses and formats an ext with three headers.
func BenchmarkExt(b *testing.B) {
	ext := []byte(`{"header-000":"000000000001","header-001":"000000000002","header-002":"000000000003"}`)
	headers, _, _, err := ExtHeaders(ext)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			headers, _, _, _ = AppendExtHeaders(headers[:0], ext)
		}
	})
	b.Run("read-any", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, _, err := decodeExt(ext); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("write", func(b *testing.B) {
		var out []byte
		b.ReportAllocs()
		for b.Loop() {
			out = AppendExt(out[:0], headers)
		}
	})
}

// FuzzExt: any JSON object comes back with the same meaning, and nothing else is accepted.
func FuzzExt(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":"b"}`, `{"a":1,"b":[true,null],"c":{"d":"e"}}`, `{"##client_dispatch_tag":"x","tag":"y"}`,
		`{"##trace_id":"1"}`,
		`{"a":"1","a":2}`, `{"##json":"x","a":1}`, `[]`, `{"a":"\u0000\"\\"}`, `{"tag":"x"}`,
		`{"header-000" : "000000000001", "##client_dispatch_tag":"x", "long":"ä and more than eight bytes"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, ext []byte) {
		headers, trace, traced, err := ExtHeaders(ext)
		if err != nil {
			return
		}
		if len(ext) > 0 { // both parsers agree
			slow, slowTrace, slowTraced, err := decodeExt(ext)
			same := slices.EqualFunc(headers, slow, func(a, b node.Header) bool {
				return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
			})
			if err != nil || !same || slowTrace != trace || slowTraced != traced {
				t.Fatalf("%q is %q (%d, %v), decoded whole %q (%d, %v): %v",
					ext, headers, trace, traced, slow, slowTrace, slowTraced, err)
			}
		}
		if got := TraceOf(headers); got != trace {
			t.Errorf("trace id %d is read as %d", trace, got)
		}
		if len(ext) == 0 {
			return
		}
		var want, got map[string]any
		if json.Unmarshal(ext, &want) != nil {
			t.Fatalf("%q is taken", ext)
		}
		back := AppendExt(nil, headers)
		if err := json.Unmarshal(back, &got); err != nil {
			t.Fatalf("%q comes back as %q: %v", ext, back, err)
		}
		delete(want, extRawNames)
		w, _ := json.Marshal(want)
		g, _ := json.Marshal(got)
		if string(w) != string(g) {
			t.Errorf("%q comes back as %q (%s)", ext, back, hex.EncodeToString(back))
		}
	})
}
