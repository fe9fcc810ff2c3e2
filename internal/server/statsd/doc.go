// Package statsd pushes the statistics of a node to a statsd over UDP, with nsqd's names. Package server starts the one
// Pusher of a node. The package imports stats, where the numbers come from, and nothing else of ours.
package statsd
