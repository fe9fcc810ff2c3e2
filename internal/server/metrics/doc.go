// Package metrics serves what Prometheus reads of a node: GET /metrics and GET /metrics/per-object.
//
// Nothing here runs while a message is published or delivered. A scrape reads the counters that the engine and the
// server keep anyway. rows.go is the only list of the metrics; docs/operate/metrics.md is generated from it.
//
// A scrape has two parts. The first reads atomics and takes only locks whose holders never wait, so it answers while
// the disk hangs. The second reads every topic and channel, for which it takes locks whose holders may wait for the
// disk: one goroutine does that for all scrapes (rounds), and a scrape that has waited for it long enough shows the
// numbers of the round before, with their age in penstock_metrics_age_seconds.
//
// The number of series is bounded by Options.MaxSeries. When the topics and channels that this node leads would have
// more, the families of channels show one sum over all of them, and if that is not enough those of topics, too. They
// stay so until the process ends (see limiter), because series that come and go make rates meaningless.
package metrics
