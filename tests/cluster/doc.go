// Package cluster tests the engine as its users run it: real processes, real clients, and faults from outside.
//
// harness runs nodes and breaks them, workload publishes and consumes, history judges what the clients saw, replicas
// compares what the disks hold afterwards, failover measures how long an interruption lasts.
//
// The tests of this package that need a cluster and time carry the build tag `cluster`: make cluster-test runs them.
// TEST_BINARY names an engine to test instead of building this module's; with -artifacts and -outputdir, histories
// and logs are kept.
package cluster
