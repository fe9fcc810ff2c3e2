// Package jsonbody says in plain words why a request's body, or a file, is not the JSON that it should be.
package jsonbody

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"unicode"
)

// Explain says what is wrong, from an error of a json.Decoder. Errors of the fields' own methods stay as they are.
func Explain(err error) string {
	if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return wrongType(wrong)
	}
	if syntax, is := errors.AsType[*json.SyntaxError](err); is {
		return fmt.Sprintf("it is no valid JSON at byte %d: %v", syntax.Offset, syntax)
	}
	switch {
	case errors.Is(err, io.EOF):
		return "it is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends in the middle"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

func wrongType(e *json.UnmarshalTypeError) string {
	name := field(e.Field)
	if name == "" {
		name = "it"
	}
	number, isNumber := strings.CutPrefix(e.Value, "number ")
	if isNumber { // a number of the wrong size, or with a fraction
		return fmt.Sprintf("%s is %s, and must be %s", name, number, wanted(e.Type, true))
	}
	return fmt.Sprintf("%s is %s, and must be %s", name, given(e.Value), wanted(e.Type, false))
}

// field returns the path of a field as it stands in the JSON: without the names of embedded Go structs.
func field(path string) string {
	var out []string
	for part := range strings.SplitSeq(path, ".") {
		if part != "" && !unicode.IsUpper(rune(part[0])) {
			out = append(out, part)
		}
	}
	return strings.Join(out, ".")
}

// given describes a value by the word that encoding/json has for it.
func given(value string) string {
	switch value {
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	case "object":
		return "an object"
	}
	return "a " + value
}

// wanted describes the values that a Go type takes; precise adds the bounds of a whole number.
func wanted(t reflect.Type, precise bool) string {
	if t.Implements(textual) || reflect.PointerTo(t).Implements(textual) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if precise {
			most := uint64(math.MaxInt64) >> (64 - t.Bits())
			return fmt.Sprintf("a whole number from -%d to %d", most+1, most)
		}
		return "a whole number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if precise {
			return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
		}
		return "a whole number of 0 or more"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}

var textual = reflect.TypeFor[encoding.TextUnmarshaler]()
