package publish

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/message"
)

// youzan's clients send headers as one JSON object before the body, the message's "ext". Each member of the object
// becomes a header of the record, with the text of the value. One more header lists the names of the members whose
// values are not strings, so that consumers get the same object that was published.

const (
	// Names to which youzan's clients give a meaning.
	ExtTraceID = "##trace_id"            // a decimal number as a string
	extTag     = "##client_dispatch_tag" // the tag of the consumers that should get the message

	// extRawNames is our own: a JSON array of the names whose values are JSON, not text.
	extRawNames = "##json"

	MaxExtBytes = 1<<16 - 1 // its length prefix has two bytes
	MaxTagBytes = 100
)

var ErrTraceID = errors.New("its trace id is not a number as a string")

// ValidTag reports whether a consumer may ask for messages with this tag. B59
func ValidTag(tag string) bool {
	return len(tag) > 0 && len(tag) <= MaxTagBytes && !bytes.ContainsFunc([]byte(tag), func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-')
	})
}

// Values shared by all messages, so that parsing allocates none of them.
var (
	extRawName  = []byte(extRawNames)
	extNoNames  = []byte("[]")
	tagHeader   = []byte(channel.TagHeader)
	errNoObject = errors.New("it is not a JSON object")
)

// ExtHeaders parses an ext, which may be empty, and returns the message's headers and its trace id. The headers may be
// slices of ext.
func ExtHeaders(ext []byte) (headers []node.Header, trace uint64, traced bool, err error) {
	return AppendExtHeaders(nil, ext)
}

// AppendExtHeaders is ExtHeaders, but appends the headers to dst.
func AppendExtHeaders(dst []node.Header, ext []byte) (headers []node.Header, trace uint64, traced bool, err error) {
	if headers, trace, traced, ok := AppendPlainExt(dst, ext); ok {
		return headers, trace, traced, nil
	}
	headers, trace, traced, err = decodeExt(ext)
	return append(dst, headers...), trace, traced, err
}

// AppendPlainExt parses an object whose values are all strings without escapes, as in nearly every ext. It does so
// without copying: the JSON package takes forty times as long and allocates for every token. For any other object,
// valid or not, it returns dst unchanged and ok false. For an object that it accepts it must return the same as the
// JSON package would.
func AppendPlainExt(dst []node.Header, ext []byte) (headers []node.Header, trace uint64, traced, ok bool) {
	if len(ext) == 0 {
		return dst, 0, false, true
	}
	s, first := plainJSON{b: ext}, len(dst)
	if !s.take('{') {
		return dst, 0, false, false
	}
	headers = dst
	more := !s.take('}')
	if !more {
		headers = append(headers, node.Header{Key: extRawName, Value: extNoNames})
	}
	for more {
		name, isName := s.text()
		colon := s.take(':')
		value, isText := s.text()
		if !isName || !colon || !isText || len(headers)-first >= message.MaxHeaderCount {
			return dst, 0, false, false
		}
		switch string(name) {
		case extRawNames:
			return dst, 0, false, false
		case ExtTraceID:
			var err error
			if trace, err = strconv.ParseUint(string(value), 10, 64); err != nil {
				return dst, 0, false, false
			}
			traced = true
		case extTag:
			headers = append(headers, node.Header{Key: tagHeader, Value: value})
		}
		for i := first; i < len(headers); i++ {
			if string(headers[i].Key) == string(name) {
				return dst, 0, false, false
			}
		}
		headers = append(headers, node.Header{Key: name, Value: value})
		if more = s.take(','); !more && !s.take('}') {
			return dst, 0, false, false
		}
	}
	s.skip()
	if s.at != len(ext) || s.foreign && !utf8.Valid(ext) {
		return dst, 0, false, false
	}
	return headers, trace, traced, true
}

// plainJSON is a scanner for such JSON.
type plainJSON struct {
	b       []byte
	at      int
	foreign bool // there are bytes beyond ASCII
}

func (s *plainJSON) skip() {
	for s.at < len(s.b) && (s.b[s.at] == ' ' || s.b[s.at] == '\t' || s.b[s.at] == '\n' || s.b[s.at] == '\r') {
		s.at++
	}
}

// take skips white space, and then c if that comes next. It reports whether it did.
func (s *plainJSON) take(c byte) bool {
	if s.at < len(s.b) && s.b[s.at] <= ' ' {
		s.skip()
	}
	if s.at < len(s.b) && s.b[s.at] == c {
		s.at++
		return true
	}
	return false
}

// text returns the string that comes next; ok is false if there is none, or if it has escapes.
func (s *plainJSON) text() (b []byte, ok bool) {
	if !s.take('"') {
		return nil, false
	}
	from := s.at
	for i := from; i < len(s.b); i++ {
		// Skip eight bytes at a time while all of them are plain, because this runs for each name and value of every
		// message.
		for i+8 <= len(s.b) && onlyPlain(binary.LittleEndian.Uint64(s.b[i:])) {
			i += 8
		}
		if i == len(s.b) {
			break
		}
		switch c := s.b[i]; {
		case c < ' ' || c == '"' || c == '\\':
			s.at = i + 1
			return s.b[from:i:i], c == '"'
		case c >= utf8.RuneSelf:
			s.foreign = true
		}
	}
	return nil, false
}

// onlyPlain reports whether all eight bytes are ASCII and none is a quote, a backslash or a control character.
func onlyPlain(w uint64) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote, backslash := w^'"'*ones, w^'\\'*ones // a matching byte becomes 0, and subtracting 1 from 0 sets the high bit
	return (w|(w-' '*ones)|(quote-ones)|(backslash-ones))&highs == 0
}

// decodeExt is ExtHeaders for any ext, with the JSON package.
func decodeExt(ext []byte) (headers []node.Header, trace uint64, traced bool, err error) {
	d := json.NewDecoder(bytes.NewReader(ext))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, 0, false, errNoObject
	}
	var raw []string
	for d.More() {
		t, err := d.Token()
		name, isText := t.(string)
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil || !isText {
			return nil, 0, false, errNoObject
		}
		if len(headers) >= message.MaxHeaderCount { // checked early, because each member is compared with all before it
			return nil, 0, false, fmt.Errorf("it has more than %d members", message.MaxHeaderCount)
		}
		h := node.Header{Key: []byte(name), Value: value}
		var text string
		if json.Unmarshal(value, &text) == nil && value[0] == '"' {
			h.Value = []byte(text)
		} else if name != extRawNames && !isNumber(h) {
			raw = append(raw, name)
		}
		switch name {
		case ExtTraceID:
			if trace, err = strconv.ParseUint(text, 10, 64); err != nil {
				return nil, 0, false, ErrTraceID
			}
			traced = true
		case extTag:
			headers = append(headers, node.Header{Key: []byte(channel.TagHeader), Value: h.Value})
		case extRawNames:
			continue // our own; computed from the values below
		}
		headers = slices.DeleteFunc(headers, func(o node.Header) bool {
			return string(o.Key) == name && name != channel.TagHeader
		})
		headers = append(headers, h)
	}
	if _, err := d.Token(); err != nil || d.InputOffset() != int64(len(bytes.TrimRight(ext, " \t\r\n"))) {
		return nil, 0, false, fmt.Errorf("it is not one JSON object")
	}
	if len(raw) > 0 || len(headers) == 0 { // an object without members must come back as an object, too
		names, err := json.Marshal(append([]string{}, raw...))
		if err != nil {
			return nil, 0, false, err
		}
		headers = append(headers, node.Header{Key: []byte(extRawNames), Value: names})
	}
	return headers, trace, traced, nil
}

// AppendExt appends the ext of a message with these headers: the JSON object, or nothing if there are no headers.
func AppendExt(dst []byte, headers []node.Header) []byte {
	if len(headers) == 0 {
		return dst
	}
	var raw []string
	dispatch := []byte(nil)
	for _, h := range headers {
		switch string(h.Key) {
		case extRawNames:
			raw = rawNames(h.Value)
		case extTag:
			dispatch = h.Value
		}
	}
	dst = append(dst, '{')
	first := true
	for _, h := range headers {
		switch {
		case string(h.Key) == extRawNames:
			continue
		case string(h.Key) == channel.TagHeader && dispatch != nil && bytes.Equal(h.Value, dispatch):
			dispatch = nil // the engine's copy of the tag; a second one is the producer's own header
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(AppendJSONText(dst, h.Key), ':')
		isRaw := func(name string) bool { return name == string(h.Key) }
		if slices.ContainsFunc(raw, isRaw) && json.Valid(h.Value) {
			dst = append(dst, h.Value...)
		} else {
			dst = AppendJSONText(dst, h.Value)
		}
	}
	return append(dst, '}')
}

// rawNames returns the names of the members whose values are not strings. If somebody else wrote the header, it may
// return none, and all values count as strings.
func rawNames(value []byte) (names []string) {
	_ = json.Unmarshal(value, &names)
	return names
}

// AppendJSONText appends b as a JSON string; invalid UTF-8 is replaced.
func AppendJSONText(dst, b []byte) []byte {
	plain := utf8.Valid(b)
	for _, c := range b {
		plain = plain && c >= ' ' && c != '"' && c != '\\'
	}
	if plain {
		return append(append(append(dst, '"'), b...), '"')
	}
	text, err := json.Marshal(string(b))
	if err != nil {
		panic("BUG: a text does not encode as JSON: " + err.Error())
	}
	return append(dst, text...)
}

// TraceOf returns the trace id in the headers, or 0 if there is none.
func TraceOf(headers []node.Header) uint64 {
	for _, h := range headers {
		if string(h.Key) == ExtTraceID {
			n, err := strconv.ParseUint(string(h.Value), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
