// Package catalog has the topics of a node by name: which there are, which are being made or get partitions, which were
// deleted a moment ago, and how many more there may be. It writes topic.json, and moves the files of deleted topics to
// the trash.
//
// Package node makes one Catalog in Open, and closes it first in Close. Topics use it as a topic.Catalog. It does not
// know the cluster: package node says how a topic is made, and when one has to go. The package may import the rooms of
// the node below it, node/topic among them, and starts no goroutine.
package catalog
