// Package prometheus tests the boards and the alert rules in deploy with a real Prometheus that scrapes real
// nodes: three, of which some are killed, and one on a small disk that fills up, hangs and rots. The tests have the
// build tag prometheus and need the programs prometheus and promtool; the small disk needs root.
package prometheus
