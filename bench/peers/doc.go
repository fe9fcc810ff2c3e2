// Command peers measures Penstock and other message servers side by side on one machine: the same work, each driven
// by its usual Go client, in rounds that alternate between the servers. It starts every server itself on loopback, with
// its data below one directory, and stops it again. A server that cannot be had is named in the report and left out.
//
// The module is apart from the product's, so that other servers are no dependencies of Penstock. nsqd and nats-server
// are built from the Go modules that go.mod pins, redis-server comes from Debian's packages, and the jars of Apache
// Kafka come from Maven Central with pinned versions and sums.
//
// The way through the files: main.go reads the flags, plan.go decides who is measured when, peer.go says what a server
// and its clients can do (nsq.go, penstock3.go, redis.go, nats.go, kafka.go), work.go, catchup.go and endtoend.go do
// the work, result.go keeps what was measured, and markdown.go says it.
package main
