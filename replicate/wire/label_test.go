package wire

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"penstock/tests/support/formattest"
)

// Labels from before this package had them are written the same way, and read back as the same values.
func TestLabel(t *testing.T) {
	want := Label{Node: "n1", Text: "10.0.0.1:4711", Client: []byte(`{"hostname":"h"}`)}
	p := formattest.Golden(t, filepath.Join("testdata", "sub-label.hex"), EncodeLabel(&want), *update)
	want.Node = ""
	if got := DecodeLabel(p); !reflect.DeepEqual(got, want) {
		t.Errorf("it is read as %+v", got)
	}
	if p := EncodeLabel(&Label{Text: strings.Repeat("x", MaxLabelBytes)}); p != nil {
		t.Errorf("a label of %d bytes is sent", len(p))
	}
	if got := DecodeLabel([]byte("{")); !reflect.DeepEqual(got, Label{}) {
		t.Errorf("what is no label is read as %+v", got)
	}
}
