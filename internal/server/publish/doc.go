// Package publish has what NSQ's clients mean by a publish, whether it comes over TCP (package nsq) or HTTP (package
// api): the body of an MPUB (batch.go), the headers in JSON of youzan's clients (ext.go), the numbers of a producer
// (numbers.go), the codes of refusals (codes.go), and the counts of all of them (counts.go).
//
// It knows no connection and no request. It imports node, and metrics for the durations; package server counts the
// publishes of native clients in its Counts, too.
package publish
