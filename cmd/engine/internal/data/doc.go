// Package data has the commands about what a node stores: backup, restore, rebuild-cluster, accept-loss, aside,
// upgrade, and migrate, which imports the data of an nsqd. Most of them work on the data directory of a stopped node.
// Only main imports it.
package data
