package main

import (
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

func TestDevClusterUsage(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string
	}{
		{"--nodes 0", "--nodes 0 is not from 1 to 16"},
		{"--nodes 17", "--nodes 17"},
		{"--base-port 0", "--base-port 0"},
		{"--base-port 65510", "is not from 1 to 65509"},
		{"extra", "flags of serve go behind --"},
		{"extra -- --io pwrite", "flags of serve go behind --"},
		{"-- --oi pwrite", "behind --: unknown flag: --oi"},
		{"-- --io mmap", "not one of auto, uring, pwrite"},
		{"-- pwrite", "serve takes no argument"},
		{"-- --data-path x", "dev-cluster sets --data-path itself"},
		{"-- --node-id=x", "dev-cluster sets --node-id itself"},
		{"--node 3", "the nearest one is --nodes"},
	} {
		execute(t, append([]string{"dev-cluster", "--data-path", t.TempDir()}, strings.Fields(tc.args)...)...).check(t,
			cli.ExitUsage, tc.want)
	}
}
