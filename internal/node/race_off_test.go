//go:build !race

package node_test

const slower = 1
