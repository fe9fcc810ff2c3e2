// Package logtest makes logs of batches for the tests of packages that read or flush them: node/flush, node/outgoing
// and node/partition. It imports batch, segment, segment/aio and faultaio.
package logtest
