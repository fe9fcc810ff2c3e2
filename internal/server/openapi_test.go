package server

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"penstock/internal/cluster/admin"
	"penstock/internal/server/web"
)

// accessNames are the values of x-permission in docs/openapi.yaml.
var accessNames = map[web.Access]string{
	web.Open: "open", web.Known: "known", web.Publish: "publish", web.View: "view", web.ViewTopic: "view-topic",
	web.ViewAny: "view-any", web.ViewSome: "view-some", web.ViewNode: "view-node",
	web.Admin: "admin", web.AdminTopic: "admin-topic", web.Node: "node",
}

// operation is one method of a path in docs/openapi.yaml.
type operation struct {
	Summary    string         `json:"summary"`
	Permission string         `json:"x-permission"`
	Responses  map[string]any `json:"responses"`
}

// routed returns the permission of each "METHOD path" that the node serves. HEAD goes with GET. Which methods the paths
// below /cluster/ take, they say themselves.
func routed(t *testing.T, n *testNode) map[string]string {
	out := map[string]string{}
	add := func(path string, rt web.Route, methods []string) {
		for _, m := range methods {
			need := rt.Need
			if m == "GET" {
				need = rt.Look
			}
			if m != "HEAD" {
				out[m+" "+strings.TrimSuffix(path, "{$}")] = accessNames[need]
			}
		}
	}
	table := n.api.Table()
	for path, rt := range table {
		if rt.Methods != web.AnyMethod {
			add(path, rt, strings.Split(rt.Methods, ","))
		}
	}
	for _, path := range admin.Paths() {
		rt, ok := table[path]
		if !ok {
			rt = table["/cluster/"]
		}
		var methods []string
		for _, m := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
			reply, _ := request(t, m, n.base+path, "", "Authorization", "Bearer node-admin")
			if reply.StatusCode != 405 {
				methods = append(methods, m)
			}
		}
		add(path, rt, methods)
	}
	return out
}

// Every route is in docs/openapi.yaml with its methods and permissions, and nothing else is.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI string                          `json:"openapi"`
		Paths   map[string]map[string]operation `json:"paths"`
	}
	var all map[string]any
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("the version is %q", doc.OpenAPI)
	}
	said := map[string]string{}
	for path, methods := range doc.Paths {
		for m, op := range methods {
			said[strings.ToUpper(m)+" "+path] = op.Permission
			if op.Summary == "" || len(op.Responses) == 0 {
				t.Errorf("%s %s has no summary or no responses", m, path)
			}
		}
	}
	routes := routed(t, grantNode(t))
	for _, route := range slices.Sorted(maps.Keys(routes)) {
		if got, ok := said[route]; !ok {
			t.Errorf("%s is served, and not in docs/openapi.yaml", route)
		} else if got != routes[route] {
			t.Errorf("%s needs %s; docs/openapi.yaml says %q", route, routes[route], got)
		}
	}
	for _, route := range slices.Sorted(maps.Keys(said)) {
		if routes[route] == "" {
			t.Errorf("docs/openapi.yaml has %s, which is not served", route)
		}
	}
	used := map[string]bool{}
	references(t, all, all, used)
	for kind, entries := range all["components"].(map[string]any) {
		for name := range entries.(map[string]any) {
			if kind != "securitySchemes" && !used["#/components/"+kind+"/"+name] {
				t.Errorf("%s %s is used nowhere", kind, name)
			}
		}
	}
}

// references checks that every $ref in v leads to something in doc.
func references(t *testing.T, doc map[string]any, v any, used map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			references(t, doc, x, used)
		}
	case map[string]any:
		for k, x := range v {
			if k != "$ref" {
				references(t, doc, x, used)
				continue
			}
			used[fmt.Sprint(x)] = true
			var at any = doc
			for _, name := range strings.Split(strings.TrimPrefix(fmt.Sprint(x), "#/"), "/") {
				m, _ := at.(map[string]any)
				at = m[name]
			}
			if at == nil {
				t.Errorf("%v leads nowhere", x)
			}
		}
	}
}
