package backup

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
	"penstock/tests/support/formattest"
)

// FORMAT.md lists the keys of the manifest and of its files, in their order.
func TestFormatOfManifest(t *testing.T) {
	tables := formattest.Tables(t)
	listed := map[reflect.Type][]string{}
	format := ""
	for heading, of := range map[string]reflect.Type{
		ManifestFile: reflect.TypeFor[Manifest](), "Files of " + ManifestFile: reflect.TypeFor[File](),
		"Missing of " + ManifestFile: reflect.TypeFor[Missing](),
	} {
		for _, row := range tables[heading] {
			if row[0] == "format" {
				format, _, _ = strings.Cut(row[1], ".")
			}
			listed[of] = append(listed[of], row[0])
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Manifest](), reflect.TypeFor[File](), reflect.TypeFor[Missing]()} {
		var keys []string
		for f := range of.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			keys = append(keys, name)
		}
		if !slices.Equal(keys, listed[of]) {
			t.Errorf("%v has %q, FORMAT.md lists %q", of, keys, listed[of])
		}
	}
	if format != strconv.Itoa(Format) {
		t.Errorf("FORMAT.md says format %q, the code %d", format, Format)
	}
}

// Manifests that no version wrote, and those of a newer version, are refused.
func TestManifestIsChecked(t *testing.T) {
	node := File{Name: datadir.NodePath, Bytes: 1, CRC: "00000000"}
	good := Manifest{Format: Format, MadeBy: "v9", Cluster: uuid.UUID{1}, Files: []File{node}}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Manifest){
		"use the version that made it (v9)": func(m *Manifest) { m.Format++ },
		"has no node.json":                  func(m *Manifest) { m.Files = nil },
		"impossible entry: \"../x\"":        func(m *Manifest) { m.Files = []File{{Name: "../x", CRC: "0"}, node} },
		"impossible entry: \"/x\"":          func(m *Manifest) { m.Files = []File{{Name: "/x", CRC: "0"}, node} },
		"impossible entry: \"backup.json\"": func(m *Manifest) { m.Files = []File{{Name: ManifestFile, CRC: "0"}, node} },
		"impossible entry: \"a\"":           func(m *Manifest) { m.Files = []File{{Name: "a", CRC: "x"}, node} },
		"not sorted":                        func(m *Manifest) { m.Files = []File{node, node} },
	} {
		m := good
		change(&m)
		if err := m.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, which does not say %q", err, want)
		}
	}
}
