// Package api serves HTTP: nsqd's API, ours, the pages of the console, and what a node says of its whole cluster.
// Package server has the listeners, and makes the one [Service] of a node.
//
// routes.go has all routes; each names the right that it needs, and package web asks the [Guard] before it serves them
// (guard.go, session.go). A request about the whole cluster is answered by the node that got it: it asks all others,
// over the connections between nodes (ask_nodes.go). remember.go keeps what the console shows of the past, and what
// this node keeps for others.
//
// The types of answers are exported: the commands of cmd/engine decode them.
package api
