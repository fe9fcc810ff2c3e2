package metrics

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/operate/metrics.md anew")

// sections are the headings of docs/operate/metrics.md, in its order. labels are those of all metrics of a section,
// which its text names.
var sections = []struct {
	section
	heading, text string
	labels        []string
}{
	{ofNode, "The node", "", nil},
	{ofStorage, "Storage", "", nil},
	{ofClients, "Clients", "", nil},
	{ofCluster, "The cluster", "A single node has none of these.", nil},
	{
		ofTopics, "Topics",
		"All have the label `topic`. Each node shows the topics of which it leads a partition, so a sum over all nodes " +
			"counts nothing twice.",
		[]string{"topic"},
	},
	{
		ofChannels, "Channels",
		"All have the labels `topic` and `channel`. Depths and counts are of the partitions that the node leads: sum over " +
			"the nodes. Of ages take the greatest.",
		[]string{"topic", "channel"},
	},
}

// docIntro begins docs/operate/metrics.md; ' stands for the quotes of code.
const docIntro = `# Metrics

Every node serves these to Prometheus at '/metrics' of its HTTP address, beside those of the Go runtime ('go_') and of
the process ('process_'). Every name begins with 'penstock_', which this page leaves out. Names that end in '_total' are
counters, which begin at 0 with the process, those in '_duration_seconds' histograms, all others gauges. A number of
seconds below 0 means behind, or over.

'--metrics-max-series' (10,000) bounds the series of topics and channels. Beyond it each metric of channels shows one
sum, with empty labels (of ages and of 'paused' the greatest), and if that is not enough, those of topics do the same,
until the node is restarted. '/metrics/per-object?topic=orders*' still shows single topics.

Where clients need tokens, Prometheus needs one, too, of any right, unless 'open-pages' is true. In the file of tokens:
'permissions = ["view"]' on a topic that nobody uses. In the configuration of Prometheus, for the job:

    authorization:
      credentials_file: /etc/prometheus/penstock.token

'deploy/prometheus' has a configuration and alert rules, and 'deploy/grafana' boards, for these metrics.

This page is written by 'go test ./internal/server/metrics -run TestDocumentation -update'.
`

// docs/operate/metrics.md lists every metric with its labels and its help text; its name says its type. It is also the
// list by which a change of a name is noticed: boards and alerts of others use these names.
func TestDocumentation(t *testing.T) {
	const file = "../../../docs/operate/metrics.md"
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(docIntro, "'", "`"))
	count := 0
	for _, s := range sections {
		if !slices.ContainsFunc(families, func(f *family) bool { return f.section == s.section }) {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", s.heading)
		if s.text != "" {
			b.WriteString(wrapped(s.text) + "\n")
		}
		b.WriteString("| metric | what it says |\n|---|---|\n")
		for _, f := range families {
			if f.section != s.section {
				continue
			}
			count++
			labels := ""
			if s.labels != nil && !slices.Equal(f.labels, s.labels) {
				t.Errorf("%s has the labels %q, and its section says %q", f.name, f.labels, s.labels)
			} else if s.labels == nil && len(f.labels) > 0 {
				labels = "{" + strings.Join(f.labels, ",") + "}"
			}
			fmt.Fprintf(&b, "| `%s%s` | %s |\n", strings.TrimPrefix(f.name, prefix), labels, f.help)
		}
	}
	if count != len(families) {
		t.Errorf("%d of %d metrics are in a section", count, len(families))
	}
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != b.String() {
		t.Errorf("%s does not list the metrics as they are (%v): see the end of its first part", file, err)
	}
}

// wrapped breaks text into lines of at most 120 columns.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
		case column+1+len(word) > 120:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}
