package main

import (
	"os"
	"path/filepath"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// Options that contradict each other, and files that cannot be used, end a start before anything is joined or made: a
// node of a cluster that waits for the others would say it only when they are there.
func TestOptionsAreJudgedFirst(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	must(t, os.WriteFile(tokens, []byte("this is no token file"), 0o600))
	for name, tc := range map[string]struct {
		flags []string
		says  string
	}{
		"a token file that is none": {[]string{"--auth-file", tokens}, tokens},
		"no token file":             {[]string{"--auth-file", tokens + ".gone"}, tokens + ".gone"},
		"a delay beyond the engine's": {
			[]string{"--max-defer", "9999h"}, "9999h",
		},
		"a body that holds no message": {
			[]string{"--max-message-bytes", "2MiB", "--max-body-bytes", "1MiB"}, "a body must hold a message",
		},
		"a message that no batch holds": {
			[]string{"--max-message-bytes", "20MiB", "--max-body-bytes", "20MiB"}, "MaxMessageBytes",
		},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		args := []string{
			"serve", "--node-id", "n1", "--data-path", dir, "--cluster-address", "127.0.0.1:1", "--cluster-peers",
			"n1=127.0.0.1:1,n2=127.0.0.1:4,n3=127.0.0.1:7", "--join-timeout", "5s", "--cluster-insecure",
		}
		execute(t, append(args, tc.flags...)...).check(t, cli.ExitUsage, tc.says)
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the data directory was made", name)
		}
	}
}
