// Package prometheus tests the boards and the alert rules in deploy with a real Prometheus that scrapes three real
// nodes. The tests have the build tag prometheus and need the programs prometheus and promtool.
package prometheus
