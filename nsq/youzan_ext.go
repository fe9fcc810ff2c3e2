package nsq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"penstock/engine"
)

// Youzan's clients carry headers as one JSON object beside the body, its "ext". They become headers of the record, each value as its text. The names of
// those that were no strings are remembered in one more header, so that the object comes back as it was published.

const (
	extVersionNone = 0
	extVersionJSON = 4

	// Names that youzan's clients give a meaning.
	extTraceID = "##trace_id"            // a decimal number as a string
	extTag     = "##client_dispatch_tag" // for which consumers the message is

	// extRawNames is our own: a JSON array of the names whose values are JSON, not text.
	extRawNames = "##json"

	maxExtBytes      = 1<<16 - 1 // its length has two bytes
	maxTagBytes      = 100
	extLengthBytes   = 2
	traceIDBytes     = 8
	messagePlaceSize = 8 + 4 // offset, size
)

var errTraceID = errors.New("its trace id is not a number as a string")

// validTag says whether a consumer can ask for messages of the tag. B59
func validTag(tag string) bool {
	return len(tag) > 0 && len(tag) <= maxTagBytes && !bytes.ContainsFunc([]byte(tag), func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-')
	})
}

// extHeaders are a message's headers and its trace id, read from its ext. A message without ext has none.
func extHeaders(ext []byte) (headers []engine.Header, trace uint64, traced bool, err error) {
	if len(ext) == 0 {
		return nil, 0, false, nil
	}
	d := json.NewDecoder(bytes.NewReader(ext))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, 0, false, fmt.Errorf("it is not a JSON object")
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
			return nil, 0, false, fmt.Errorf("it is not a JSON object")
		}
		h := engine.Header{Key: []byte(name), Value: value}
		var text string
		if json.Unmarshal(value, &text) == nil && value[0] == '"' {
			h.Value = []byte(text)
		} else if name != extRawNames {
			raw = append(raw, name)
		}
		switch name {
		case extTraceID:
			if trace, err = strconv.ParseUint(text, 10, 64); err != nil {
				return nil, 0, false, errTraceID
			}
			traced = true
		case extTag:
			headers = append(headers, engine.Header{Key: []byte(engine.TagHeader), Value: h.Value})
		case extRawNames:
			continue // ours; it follows from the values
		}
		headers = slices.DeleteFunc(headers, func(o engine.Header) bool { return string(o.Key) == name && name != engine.TagHeader })
		headers = append(headers, h)
	}
	if _, err := d.Token(); err != nil || d.InputOffset() != int64(len(bytes.TrimRight(ext, " \t\r\n"))) {
		return nil, 0, false, fmt.Errorf("it is not one JSON object")
	}
	if len(raw) > 0 || len(headers) == 0 { // an object without names comes back as one, too
		names, err := json.Marshal(append([]string{}, raw...))
		if err != nil {
			return nil, 0, false, err
		}
		headers = append(headers, engine.Header{Key: []byte(extRawNames), Value: names})
	}
	return headers, trace, traced, nil
}

// appendExt appends the ext of a message with headers: the object, nil for a message without any.
func appendExt(dst []byte, headers []engine.Header) []byte {
	if len(headers) == 0 {
		return dst
	}
	var raw []string
	dispatch := []byte(nil)
	for _, h := range headers {
		switch string(h.Key) {
		case extRawNames:
			_ = json.Unmarshal(h.Value, &raw) // if somebody else wrote it, all values are text
		case extTag:
			dispatch = h.Value
		}
	}
	dst = append(dst, '{')
	first := true
	for _, h := range headers {
		name := string(h.Key)
		switch {
		case name == extRawNames:
			continue
		case name == engine.TagHeader && dispatch != nil && bytes.Equal(h.Value, dispatch):
			dispatch = nil // the engine's copy of it; a second one is the producer's own
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(appendJSONText(dst, h.Key), ':')
		if slices.Contains(raw, name) && json.Valid(h.Value) {
			dst = append(dst, h.Value...)
		} else {
			dst = appendJSONText(dst, h.Value)
		}
	}
	return append(dst, '}')
}

// appendJSONText appends b as a JSON string; what is no UTF-8 in it is replaced.
func appendJSONText(dst, b []byte) []byte {
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

// traceOf is the trace id among headers; 0: none.
func traceOf(headers []engine.Header) uint64 {
	for _, h := range headers {
		if string(h.Key) == extTraceID {
			n, err := strconv.ParseUint(string(h.Value), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
