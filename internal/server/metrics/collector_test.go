package metrics

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"penstock/internal/node"
)

// newNode opens an engine with a topic t, in which are two messages of 5 and 6 bytes, and its channel c.
func newNode(t *testing.T) *node.Engine {
	t.Helper()
	e, err := node.Open(t.Context(), node.Options{
		DataPath: t.TempDir(), IO: "pwrite", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	topic, err := e.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topic.CreateChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"hello", "hello!"} {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func gather(t *testing.T, c prometheus.Collector) map[string]*dto.MetricFamily {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range all {
		out[f.GetName()] = f
	}
	return out
}

// The names follow the rules of Prometheus: promlint is what `promtool check metrics` runs.
func TestLint(t *testing.T) {
	var all []*dto.MetricFamily
	for _, f := range gather(t, New(Options{Engine: newNode(t), Version: "1", Started: time.Now()})) {
		all = append(all, f)
	}
	problems, err := promlint.NewWithMetricFamilies(all).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// valueOf returns the value of a metric whose label has the value; "" for one without labels.
func valueOf(t *testing.T, all map[string]*dto.MetricFamily, name, label string) float64 {
	t.Helper()
	for _, m := range all[prefix+name].GetMetric() {
		labels := ""
		for _, l := range m.GetLabel() {
			labels += l.GetValue()
		}
		if labels == label {
			if m.Counter != nil {
				return m.Counter.GetValue()
			}
			return m.Gauge.GetValue()
		}
	}
	t.Errorf("%s has no series with the label %q", name, label)
	return -1
}

func TestCollect(t *testing.T) {
	e := newNode(t)
	topic, _ := e.Catalog().LookupTopic("t")
	for _, name := range []string{"p", "q", "q", ""} {
		if _, err := topic.OpenProducer(t.Context(), 0, name); err != nil {
			t.Fatal(err)
		}
	}
	_, err := e.CreateTopicWith(t.Context(), "own", node.TopicOptions{MadeBy: "shop", Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	c := New(Options{Engine: e, Version: "1.2.3", Started: time.Now()})
	all := gather(t, c)
	for _, f := range families {
		if f.section != ofCluster && f.section != ofClients && all[f.name] == nil {
			t.Errorf("%s has no series", f.name)
		}
	}
	for _, x := range []struct {
		name, label string
		want        float64
	}{
		{"topic_published_messages_total", "t", 2},
		{"topic_published_bytes_total", "t", 11},
		{"topic_depth", "t", 0},
		{"topic_producers", "t", 3},
		{"topic_max_partition_producers", "t", 3},
		{"channel_depth", "ct", 2},
		{"channel_finished_total", "ct", 0},
		{"storage_failed", "", 0},
		{"commit_log_forgotten", "", 0},
		{"ground_lost", "", 0},
		{"older_directory", "", 0},
		{"copies", "damaged", 0},
		{"copies", "contested", 0},
		{"copies", "short", 0},
		{"copies", "shortened", 0},
		{"ready", "commit-log", 1},
		{"disk_state", "good", 1},
		{"disk_state", "hung", 0},
		{"metrics_truncated", "", 0},
	} {
		if got := valueOf(t, all, x.name, x.label); got != x.want {
			t.Errorf("%s of %q is %v, want %v", x.name, x.label, got, x.want)
		}
	}
	if h := all[prefix+"commit_flush_duration_seconds"].GetMetric()[0].GetHistogram(); h.GetSampleCount() < 2 ||
		h.GetSampleSum() <= 0 || h.GetSampleCount() != uint64(valueOf(t, all, "commit_groups_total", "")) {
		t.Errorf("the histogram of flushes is %v", h)
	}
	if stored := valueOf(t, all, "topic_stored_bytes", "t"); stored < 11 {
		t.Errorf("%v stored bytes", stored)
	}
	if age := valueOf(t, all, "channel_oldest_unfinished_age_seconds", "ct"); age <= 0 || age > 60 {
		t.Errorf("the oldest message is %v s old", age)
	}
	if free := valueOf(t, all, "disk_free_bytes", ""); free < 1<<20 {
		t.Errorf("%v bytes are free", free)
	}
}

func TestPerObject(t *testing.T) {
	c := New(Options{Engine: newNode(t), MaxSeries: seriesPerTopic + seriesPerChannel})
	for _, x := range []struct {
		query  string
		status int
		has    string
	}{
		{"?topic=t", 200, `penstock_channel_depth{channel="c",topic="t"} 2`},
		{"?topic=*", 200, `penstock_topic_published_messages_total{topic="t"} 2`},
		{"?topic=x*", 200, ""},
		{"", 400, "pattern"},
		{"?topic=[", 400, "pattern"},
	} {
		w := httptest.NewRecorder()
		c.PerObject().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/per-object"+x.query, nil))
		if w.Code != x.status || !strings.Contains(w.Body.String(), x.has) {
			t.Errorf("%q: %d %s", x.query, w.Code, w.Body)
		}
	}
	c.o.MaxSeries--
	c.limit.most--
	w := httptest.NewRecorder()
	c.PerObject().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/per-object?topic=t", nil))
	if w.Code != 422 || !strings.Contains(w.Body.String(), fmt.Sprint("metrics-max-series is ", c.o.MaxSeries)) {
		t.Errorf("more than the limit: %d %s", w.Code, w.Body)
	}
	if all := gather(t, c); valueOf(t, all, "metrics_truncated", "") != 1 || valueOf(t, all, "channel_depth", "") != 2 {
		t.Error("/metrics does not show the sums")
	}
}

// Of many tokens, those that take the most have series.
func TestTokensWithSeriesAreBounded(t *testing.T) {
	e := newNode(t)
	for i := range maxTokens + 5 {
		o := node.TopicOptions{MadeBy: fmt.Sprint("token", i), Partitions: 1 + i}
		if _, err := e.CreateTopicWith(t.Context(), fmt.Sprint("own", i), o); err != nil {
			t.Fatal(err)
		}
	}
	all := gather(t, New(Options{Engine: e, Version: "1.2.3", Started: time.Now()}))
	if n := len(all[prefix+"token_partitions"].GetMetric()); n != maxTokens {
		t.Errorf("%d tokens have series, want %d", n, maxTokens)
	}
	if n := valueOf(t, all, "token_partitions", "token5"); n != 6 {
		t.Errorf("a token of those that take the most has %v partitions, want 6", n)
	}
}
