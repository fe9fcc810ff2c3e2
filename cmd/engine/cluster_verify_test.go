package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// cluster verify --json prints one document, whatever the number of partitions: also when copies differ, and when a
// comparison fails, with what was compared before.
func TestVerifyPrintsOneDocument(t *testing.T) {
	const same = `{"bytes":7,"next":7,"done":true,"nodes":["n1","n2"]}`
	const damaged = `{"bytes":7,"next":7,"done":true,"nodes":["n1","n2"],"found":[{"damaged":["n2"]}]}`
	for name, tc := range map[string]struct {
		answers []string // of the comparisons; empty: it fails
		code    int
		says    string
		counts  []int // differences found in each partition
	}{
		"nothing to compare": {nil, 0, "", nil},
		"all the same":       {[]string{same, same}, 0, "", []int{0, 0}},
		"damage":             {[]string{damaged, same}, cli.ExitOther, "differ in 1 place", []int{1, 0}},
		"the second fails":   {[]string{same, ""}, cli.ExitOther, "partition 1 of topic orders", []int{0}},
	} {
		asked := 0
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case r.Method == http.MethodGet && tc.answers == nil:
				_, _ = io.WriteString(w, `{"topics":[]}`)
			case r.Method == http.MethodGet:
				_, _ = io.WriteString(w, `{"topics":[{"name":"orders","partitions":[{"partition":0},{"partition":1}]}]}`)
			case tc.answers[asked] == "":
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, `{"message":"no"}`)
			default:
				_, _ = io.WriteString(w, tc.answers[asked])
				asked++
			}
		}))
		o := execute(t, "cluster", "verify", "--json", "--http-address", node.URL)
		node.Close()
		if o.code != tc.code || !strings.Contains(o.stderr, tc.says) {
			t.Errorf("%s: %+v", name, o)
		}
		var all struct {
			Partitions []struct {
				Bytes int
				Found []any
			}
		}
		dec := json.NewDecoder(strings.NewReader(o.stdout))
		if err := dec.Decode(&all); err != nil || dec.More() || all.Partitions == nil {
			t.Fatalf("%s: no single document (%v): %s", name, err, o.stdout)
		}
		for i, p := range all.Partitions {
			if len(all.Partitions) != len(tc.counts) || p.Bytes != 7 || p.Found == nil || len(p.Found) != tc.counts[i] {
				t.Errorf("%s: %s", name, o.stdout)
			}
		}
	}
}
