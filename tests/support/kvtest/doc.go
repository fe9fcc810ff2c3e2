// Package kvtest tests that every implementation of kv.Store behaves as package cluster needs it. The tests of
// cluster/etcd, cluster/kv/memory, kvfaults and kvfile use it. It imports cluster/kv.
package kvtest
