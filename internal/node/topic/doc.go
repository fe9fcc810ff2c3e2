// Package topic has the topics of a node and their channels, as programs and servers use them: publishing, channels and
// their settings, consumers and readers, producers, and the operations that the leaders of all partitions execute.
//
// A Topic is a name over partitions (node/partition); a Channel is a cursor over them. A Local is this node's part of a
// topic, with the part of each channel (channel.Channel) and the partitions that it has. What only concerns one
// partition or one node is done by those packages; this one knows which partitions there are, who leads them
// (serving.go), and asks the others (operations.go). Package node has the catalog of topics, opens and deletes them,
// and applies the cluster's metadata.
//
// Package node uses it, and has its types under the same names. It may import the rooms of the node below it, but
// neither backup nor diskwatch nor forward.
package topic
