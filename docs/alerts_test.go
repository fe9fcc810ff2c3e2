package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// alert is what this test reads of a rule in deploy/prometheus/alerts.yml.
type alert struct {
	Alert       string            `json:"alert"`
	Annotations map[string]string `json:"annotations"`
}

// alerts.md has a part for each alert, in the order of the rules, that says where to look and what to do; the alert
// itself says what it means, and leads to the part.
func TestAlertsHaveRunbooks(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "../deploy/prometheus/alerts.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, g := range rules.Groups {
		for _, a := range g.Rules {
			wanted = append(wanted, a.Alert)
			if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
				t.Errorf("%s does not say what it means", a.Alert)
			}
			if want := "docs/operate/alerts.md#" + strings.ToLower(a.Alert); a.Annotations["runbook"] != want {
				t.Errorf("the runbook of %s is %q, want %q", a.Alert, a.Annotations["runbook"], want)
			}
		}
	}
	parts := strings.Split(read(t, "operate/alerts.md"), "\n## ")[1:]
	var said []string
	for _, part := range parts {
		name, text, _ := strings.Cut(part, "\n")
		said = append(said, name)
		at := 0
		for _, begin := range []string{"\n**Look.** ", "\n**Do.**"} {
			i := strings.Index(text, begin)
			if i < at {
				t.Errorf("the part about %s has no %q in its place", name, strings.TrimSpace(begin))
			}
			at = i
		}
	}
	if !slices.Equal(said, wanted) {
		t.Errorf("alerts.md is about\n%q, and the rules are\n%q", said, wanted)
	}
}

// The metrics that documents for operators name are in metrics.md, which is compared with the program.
func TestMetricsAreKnown(t *testing.T) {
	named := regexp.MustCompile(`\bpenstock_[a-z_]+[a-z]\b`)
	known := read(t, "operate/metrics.md")
	for _, doc := range []string{"operate/alerts.md", "operate/operating.md", "console.md", "../README.md"} {
		for _, name := range named.FindAllString(read(t, doc), -1) {
			if !strings.Contains(known, "`"+strings.TrimPrefix(name, "penstock_")) {
				t.Errorf("%s names %s, which no node shows", doc, name)
			}
		}
	}
}
