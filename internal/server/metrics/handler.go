package metrics

import (
	"fmt"
	"net/http"
	"path"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"penstock/internal/node"
	"penstock/internal/server/web"
)

// maxScrapes bounds the scrapes that are served at a time; further ones get 503.
const maxScrapes = 16

// Handler serves GET /metrics: the collector's metrics, and those of the Go runtime and of the process.
func (c *Collector) Handler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return onlyGet(promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
}

// PerObject serves GET /metrics/per-object?topic=GLOB: the series of the topics whose name matches, and of their
// channels, even if /metrics shows only sums. GLOB is a pattern of path.Match. If more than Options.MaxSeries would
// match, nothing is shown: a part would look like the whole.
func (c *Collector) PerObject() http.Handler {
	return onlyGet(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pattern := r.URL.Query().Get("topic")
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			web.WriteError(w, web.Fail(400, "the parameter topic must be a pattern of names of topics, such as orders* or *"))
			return
		}
		o := c.rounds.latest(c.o.Wait)
		if o == nil {
			web.WriteError(w, web.Fail(503, "the topics could not be read in time: look at the disk, and try again"))
			return
		}
		chosen := o.matching(pattern)
		if n, most := chosen.series(), c.limit.bound(); n > most {
			web.WriteError(w, web.Fail(422, fmt.Sprintf("%s matches topics and channels with %d series, and metrics-max-series "+
				"is %d: use a pattern that matches fewer", pattern, n, most)))
			return
		}
		reg := prometheus.NewRegistry()
		reg.MustRegister(chosen)
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	}))
}

func onlyGet(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			web.WriteError(w, web.Fail(405, "METHOD_NOT_ALLOWED"))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// chosen is a prometheus.Collector of some topics with their channels.
type chosen struct{ objects }

// matching returns the topics whose name matches the pattern, which is valid.
func (o *objects) matching(pattern string) *chosen {
	c := &chosen{objects{at: o.at, now: o.now}}
	for i := range o.topics {
		if ok, _ := path.Match(pattern, o.topics[i].Name); ok {
			c.topics = append(c.topics, o.topics[i])
		}
	}
	return c
}

func (c *chosen) series() (n int) {
	c.eachTopic(func(t *node.TopicStats) { n += seriesPerTopic + len(t.Channels)*seriesPerChannel })
	return n
}

func (c *chosen) Describe(out chan<- *prometheus.Desc) {
	for _, f := range families {
		if slices.Contains([]section{ofTopics, ofChannels}, f.section) {
			out <- f.desc
		}
	}
}

func (c *chosen) Collect(out chan<- prometheus.Metric) {
	l := limiter{most: c.series()}
	l.collect(writer{out}, &c.objects)
}
