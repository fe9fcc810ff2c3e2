// Package devcluster has the command dev-cluster: it runs the nodes of a cluster as processes on this machine. Only
// main imports it.
package devcluster
