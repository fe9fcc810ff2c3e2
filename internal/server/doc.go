// Package server is what listens on a node: it opens all ports that clients use, and starts and stops what serves them.
// Each port is served by a package of its own: nsq (the V2 protocol), api (nsqd's HTTP API, ours, and the console),
// native, and lookup (nsqlookupd's part).
//
// A [Server] holds what the ports share, and gives it to them when it makes them: the engine, certificates (tls.go),
// who may do what (package auth), the audit, the budgets of memory and connections, the counts for /metrics. [Options]
// has the settings of all of them. A [Front] serves HTTP while the node starts. The packages below know nothing of this
// one.
package server
