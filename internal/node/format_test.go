package node

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/tests/support/formattest"
)

// The keys of the two JSON files are those of FORMAT.md, in its order.
func TestFormatOfFiles(t *testing.T) {
	found := formattest.Tables(t)
	formats := map[string]int{datadir.NodePath: datadir.FormatOf(NewestLevel), datadir.TopicFile: datadir.TopicFormat}
	for heading, file := range map[string]any{
		datadir.NodePath: datadir.Node{
			Format: datadir.FormatOf(NewestLevel), Cluster: uuid.UUID{1}, Lives: []datadir.Life{{}},
		},
		datadir.TopicFile: datadir.Topic{
			Format: datadir.TopicFormat, MadeBy: "shop", Settings: meta.TopicSettings{Version: 1},
		},
	} {
		var keys []string
		for f := range reflect.TypeOf(file).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			keys = append(keys, name)
		}
		var listed []string
		for _, row := range found[heading] {
			listed = append(listed, row[0])
		}
		if !slices.Equal(keys, listed) {
			t.Errorf("%s has %q, FORMAT.md lists %q", heading, keys, listed)
		}
		if len(found[heading]) == 0 || found[heading][0][1] != strconv.Itoa(formats[heading]) {
			t.Errorf("FORMAT.md does not say that the format of %s is %d", heading, formats[heading])
		}
		data, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		var written map[string]any
		if err := json.Unmarshal(data, &written); err != nil || len(written) != len(listed) {
			t.Errorf("%s is written with %v (%v)", heading, slices.Sorted(maps.Keys(written)), err)
		}
	}
}
