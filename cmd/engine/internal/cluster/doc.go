// Package cluster has the commands about a cluster: status and health, which also work with a single node, where
// partitions are, moves, drains, rebalances, leaders that are chosen by hand, and certificates for the nodes
// (init-tls). They ask a running node. Only main imports it.
package cluster
