package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"penstock/internal/shares"
)

var update = flag.Bool("update", false, "write reference/http.md and the table of limits.md anew")

// parameter is a parameter of an operation in openapi.yaml.
type parameter struct {
	Ref         string `json:"$ref"`
	Name        string `json:"name"`
	In          string `json:"in"`
	Required    bool   `json:"required"`
	Description string `json:"description"`
}

// schema is what this test reads of a body's schema.
type schema struct {
	Ref        string         `json:"$ref"`
	Properties map[string]any `json:"properties"`
}

type content struct {
	Ref     string `json:"$ref"`
	Content map[string]struct {
		Schema schema `json:"schema"`
	} `json:"content"`
}

type operation struct {
	Summary    string      `json:"summary"`
	Permission string      `json:"x-permission"`
	Parameters []parameter `json:"parameters"`
	Body       content     `json:"requestBody"`
}

type api struct {
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Parameters    map[string]parameter `json:"parameters"`
		RequestBodies map[string]content   `json:"requestBodies"`
		Schemas       map[string]schema    `json:"schemas"`
	} `json:"components"`
}

// referred returns the last part of a reference.
func referred(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// takes says what a request has: its parameters, those in brackets that may be left out, and its body.
func (a *api) takes(op *operation) string {
	var said []string
	for _, p := range op.Parameters {
		if p.Ref != "" {
			p = a.Components.Parameters[referred(p.Ref)]
		}
		switch {
		case p.In == "path": // the route shows it
		case p.Required:
			said = append(said, "`"+p.Name+"`")
		default:
			said = append(said, "[`"+p.Name+"`]")
		}
	}
	body := op.Body
	if body.Ref != "" {
		body = a.Components.RequestBodies[referred(body.Ref)]
	}
	for _, kind := range slices.Sorted(maps.Keys(body.Content)) {
		s := body.Content[kind].Schema
		if s.Ref != "" {
			s = a.Components.Schemas[referred(s.Ref)]
		}
		if len(s.Properties) > 0 {
			said = append(said, "JSON")
		} else {
			said = append(said, "a body")
		}
	}
	return strings.Join(said, " ")
}

const httpIntro = `# HTTP API

Every node serves these routes at its 'http-address' (127.0.0.1:4151) and, with TLS, at its 'https-address'. Any node of
a cluster takes requests about any topic and about the cluster; '/stats', '/metrics', the checks and what stands below
"The node" are about the node that is asked. 'lookup-address' (127.0.0.1:4161) serves nsqlookupd's routes instead.

[openapi.yaml](../openapi.yaml) describes parameters, bodies and answers; 'go test ./docs -run TestHTTPPage -update'
writes this page from it, without a POST that does what the GET does. '[x]' may be left out. Parameters stand in the
query, those that begin with 'X-' in headers. An error is a JSON object with the member 'message', and a status of 400
or above. A token comes as 'Authorization: Bearer TOKEN'.

| permission | who has it |
|---|---|
| open | everybody |
| known; admin, of /health | who has any permission at all; for known everybody, if 'open-pages' is true |
| publish, view, admin | who has it on the topic and channel that the request names; admin includes view |
| view-topic, admin-topic | who has it on the topic with all its channels |
| view-any | who has view on the topic and channel that the request names, or on everything if it names none |
| view-some | who has view on a channel of the topic, and is told of no other; without a topic, on everything |
| view-node, node | who has view or admin on everything |
`

// httpGroups are the parts of the page: a route belongs to the first of which it has a prefix.
var httpGroups = []struct {
	heading  string
	prefixes []string
}{
	{"Publishing", []string{"/pub", "/mpub", "/producer/"}},
	{"Topics", []string{"/topic/", "/topics"}},
	{"Channels", []string{"/channel/", "/channels"}},
	{"The cluster", []string{"/cluster/"}},
	{"Health and numbers", []string{
		"/health", "/livez", "/ping", "/readyz", "/startupz", "/metrics", "/stats", "/history", "/info", "/attention",
		"/vitals",
	}},
	{"The node", []string{"/"}},
}

// docs/reference/http.md lists what every route of openapi.yaml does.
func TestHTTPPage(t *testing.T) {
	var a api
	if err := yaml.Unmarshal([]byte(read(t, "openapi.yaml")), &a); err != nil {
		t.Fatal(err)
	}
	rows := make([][]string, len(httpGroups))
	for _, path := range slices.Sorted(maps.Keys(a.Paths)) {
		group := 0
		for i, g := range httpGroups {
			if slices.ContainsFunc(g.prefixes, func(p string) bool { return strings.HasPrefix(path, p) }) {
				group = i
				break
			}
		}
		summaries := make(map[string]bool)
		for _, method := range slices.SortedFunc(maps.Keys(a.Paths[path]), cmp.Compare[string]) {
			op := a.Paths[path][method]
			if summaries[op.Summary] { // a POST that does what the GET does
				continue
			}
			summaries[op.Summary] = true
			takes := a.takes(&op)
			if strings.Contains(takes, "`true`") || strings.Contains(takes, "`false`") {
				t.Errorf("%s %s takes %s: YAML reads a bare on, off, yes or no as a boolean; quote it", method, path, takes)
			}
			rows[group] = append(rows[group], fmt.Sprintf("| `%s %s` | %s | %s | %s |\n",
				strings.ToUpper(method), path, op.Summary, takes, op.Permission))
		}
	}
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(strings.ReplaceAll(httpIntro, "'", "`"), "nsqlookupd`s", "nsqlookupd's"))
	for i, g := range httpGroups {
		fmt.Fprintf(&b, "\n## %s\n\n| route | what it does | takes | permission |\n|---|---|---|---|\n%s",
			g.heading, strings.Join(rows[i], ""))
	}
	const file = "reference/http.md"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != b.String() {
		t.Errorf("%s differs from openapi.yaml: go test ./docs -run TestHTTPPage -update writes it", file)
	}
}

// shareOf says what one principal has of a resource.
func shareOf(r *shares.Resource) string {
	switch r.Parts {
	case 0:
		return r.Share
	case 4:
		return "a quarter"
	case 8:
		return "an eighth"
	case 16:
		return "a sixteenth"
	}
	return fmt.Sprintf("one of %d parts", r.Parts)
}

// limits.md has the table of what a stranger or a tenant can take.
func TestResourcesAreListed(t *testing.T) {
	const file, to = "operate/limits.md", "<!-- end -->\n"
	const from = "<!-- from internal/shares: go test ./docs -update -->\n"
	page := read(t, file)
	before, rest, found := strings.Cut(page, from)
	_, after, ended := strings.Cut(rest, to)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", file)
	}
	var b strings.Builder
	b.WriteString("| what | the node's bound | one principal | at the bound | metric |\n|---|---|---|---|---|\n")
	for _, r := range shares.Table {
		metric := ""
		if r.Metric != "" {
			metric = "`" + strings.TrimPrefix(r.Metric, "penstock_") + "`"
		}
		bound := r.Bound
		if r.Setting != "" {
			bound += " (`" + r.Setting + "`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.Name, bound, shareOf(r), r.AtBound, metric)
	}
	want := before + from + b.String() + to + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		page = want
	}
	if page != want {
		t.Errorf("%s differs from the table in internal/shares: go test ./docs -update writes it", file)
	}
	for _, r := range shares.Table {
		if r.Metric != "" && !strings.Contains(read(t, "operate/metrics.md"), "`"+strings.TrimPrefix(r.Metric, "penstock_")) {
			t.Errorf("metrics.md has no %s", r.Metric)
		}
		if r.Setting != "" && !strings.Contains(read(t, "reference/settings.md"), r.Setting) {
			t.Errorf("reference/settings.md has no %s", r.Setting)
		}
	}
}

// docs/reference/formats.md leads to every FORMAT.md.
func TestFormatsAreListed(t *testing.T) {
	page := read(t, "reference/formats.md")
	count := 0
	for _, path := range files(t, ".md") {
		if filepath.Base(path) != "FORMAT.md" {
			continue
		}
		count++
		if !strings.Contains(page, "](../"+filepath.ToSlash(path)+")") {
			t.Errorf("reference/formats.md does not lead to %s", path)
		}
	}
	if count < 10 {
		t.Errorf("only %d descriptions of formats were found", count)
	}
}
