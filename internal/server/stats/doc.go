// Package stats has what /stats of nsqd says of a node, and collects it: of topics and channels from the engine, of
// clients from those who have the connections. Package api serves it, package statsd pushes it, and the packages of the
// protocols describe their clients in its terms (Client).
//
// It also measures the latencies of channels that nsqd's --e2e-processing-latency-percentile asks for (Latencies).
package stats
