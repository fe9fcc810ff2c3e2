package metrics

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"penstock/internal/node"
)

// family is one metric: its name with the prefix, what it says, its type and its labels.
type family struct {
	name, help string
	kind       kind
	labels     []string
	sorted     []int // indices of labels, in the order of their names, which is that of the format
	section    section
	desc       *prometheus.Desc
	merge      merge // of topics and channels
}

// kind is the type of a metric, which its name tells.
type kind uint8

const (
	counter kind = iota
	gauge
	histogram
)

func (k kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

func kindOf(name string) kind {
	switch {
	case strings.HasSuffix(name, "_total"):
		return counter
	case strings.HasSuffix(name, "_duration_seconds"):
		return histogram
	}
	return gauge
}

// section is where docs/operate/metrics.md lists a metric.
type section uint8

const (
	ofNode section = iota
	ofStorage
	ofClients
	ofCluster
	ofTopics
	ofChannels
)

// prefix begins the name of every metric.
const prefix = "penstock_"

// row is a line of the table of metrics.
type row struct {
	name, help string
	value      any // see writer.set; a series; nil: not known now; of a topic or channel how its sum is made
}

func def(name, help string, value any) row { return row{name, help, value} }

// tables make the rows of what one node shows once, in the order in which the metrics are listed.
var tables = []struct {
	section section
	rows    func(*snapshot) []row
}{
	{ofNode, nodeRows},
	{ofStorage, commitRows},
	{ofStorage, stateRows},
	{ofStorage, diskRows},
	{ofClients, clientRows},
	{ofClients, httpRows},
	{ofClients, nativeRows},
	{ofCluster, clusterRows},
}

// families lists every metric, in the order of its definition. ofTables are those of each of the tables.
var (
	families        []*family
	ofTables        = defineTables()
	topicFamilies   = define(ofTopics, topicRows, "topic")
	channelFamilies = define(ofChannels, channelRows, "topic", "channel")
)

func defineTables() (all [][]*family) {
	for _, t := range tables {
		all = append(all, define(t.section, t.rows(&snapshot{counters: new(node.Counters)})))
	}
	return all
}

func define(of section, rows []row, labels ...string) []*family {
	begin := len(families)
	for _, r := range rows {
		f := &family{name: prefix + r.name, help: r.help, kind: kindOf(r.name), labels: labels, section: of}
		switch v := r.value.(type) {
		case series:
			f.labels = v.labels
		case merge:
			f.merge = v
		}
		f.desc = prometheus.NewDesc(f.name, f.help, f.labels, nil)
		for i := range f.labels {
			f.sorted = append(f.sorted, i)
		}
		slices.SortFunc(f.sorted, func(a, b int) int { return cmp.Compare(f.labels[a], f.labels[b]) })
		families = append(families, f)
	}
	return families[begin:]
}

// setter takes a value with those of the labels.
type setter func(v any, labels ...string)

// series are the values of a metric with labels.
type series struct {
	labels []string
	each   func(setter)
}

// pairs is a series with one label: all has the label's values, each with its number behind it.
func pairs(label string, all ...any) series {
	return series{[]string{label}, func(set setter) {
		for i := 0; i < len(all); i += 2 {
			set(all[i+1], all[i].(string))
		}
	}}
}

// keyed is a series with one label, whose values are the keys of a map.
func keyed[V any](label string, all map[string]V) series {
	return series{[]string{label}, func(set setter) {
		for name, v := range all {
			set(v, name)
		}
	}}
}

// each is a series with one label, with a value for each of all.
func each[E any](label string, all []E, of func(*E) (name string, value any)) series {
	return series{[]string{label}, func(set setter) {
		for i := range all {
			name, v := of(&all[i])
			set(v, name)
		}
	}}
}

// info is a series that is always 1; all has its labels, each with its value behind it.
func info(all ...string) series {
	var names, texts []string
	for i := 0; i < len(all); i += 2 {
		names, texts = append(names, all[i]), append(texts, all[i+1])
	}
	return series{names, func(set setter) { set(1, texts...) }}
}

// writer passes metrics on.
type writer struct{ out chan<- prometheus.Metric }

// table writes the rows of a table, whose families are fs.
func (w writer) table(fs []*family, rows []row) {
	for i, r := range rows {
		if v, many := r.value.(series); many {
			v.each(func(v any, labels ...string) { w.set(fs[i], v, labels...) })
		} else {
			w.set(fs[i], r.value)
		}
	}
}

// set passes a metric on, unless its value is not known. labels are the values of the family's labels.
func (w writer) set(f *family, v any, labels ...string) {
	n := 0.0
	switch v := v.(type) {
	case nil:
		return
	case *Durations:
		w.durations(f, durations{v.Counts(), v.nanos.Load()}, labels...)
		return
	case durations:
		w.durations(f, v, labels...)
		return
	case *time.Duration:
		if v == nil {
			return
		}
		n = v.Seconds()
	case time.Duration:
		n = v.Seconds()
	case bool:
		n = oneIf(v)
	case int:
		n = float64(v)
	case int64:
		n = float64(v)
	case uint64:
		n = float64(v)
	case float64:
		n = v
	default:
		panic(fmt.Sprintf("BUG: %s is of the type %T", f.name, v))
	}
	w.out <- &sample{family: f, value: n, values: labels}
}

// sample is a prometheus.Metric with a value that was read. A const metric of the library is the same, with four times
// as many allocations, and a node has thousands of them in each scrape.
type sample struct {
	family *family
	value  float64
	values []string
}

func (s *sample) Desc() *prometheus.Desc { return s.family.desc }

func (s *sample) Write(out *dto.Metric) error {
	pairs := make([]dto.LabelPair, len(s.values))
	out.Label = make([]*dto.LabelPair, len(pairs))
	for i, at := range s.family.sorted {
		pairs[i].Name, pairs[i].Value = &s.family.labels[at], &s.values[at]
		out.Label[i] = &pairs[i]
	}
	if s.family.kind == counter {
		out.Counter = &dto.Counter{Value: &s.value}
	} else {
		out.Gauge = &dto.Gauge{Value: &s.value}
	}
	return nil
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
