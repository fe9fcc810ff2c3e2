//go:build linux

package clientotel_test

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"penstock/client"
	"penstock/tests/cluster/harness"
)

var (
	quiet    = slog.New(slog.NewTextHandler(io.Discard, nil))
	penstock string // path of the program
)

// TestMain builds the program in its own module, which has the libraries that it needs.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "clientotel-")
		if err != nil {
			log.Fatal(err)
		}
		defer os.RemoveAll(dir)
		penstock = filepath.Join(dir, "penstock")
		build := exec.Command("go", "build", "-C", "../..", "-o", penstock, "./cmd/engine")
		if out, err := build.CombinedOutput(); err != nil {
			log.Printf("building penstock: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// startNode starts a node on one machine. Programs use the address of a node that runs elsewhere.
func startNode() (address string, stop func()) {
	dir, err := os.MkdirTemp("", "clientotel-")
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := harness.Single(ctx, harness.Options{Dir: dir, Binary: penstock})
	if err != nil {
		log.Fatal(err)
	}
	return c.Nodes[0].Native, func() {
		if err := errors.Join(c.Close(), os.RemoveAll(dir)); err != nil {
			log.Fatal(err)
		}
	}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// dial connects to a new node.
func dial(t *testing.T, hooks client.Hooks) *client.Client {
	t.Helper()
	address, stop := startNode()
	t.Cleanup(stop)
	c, err := client.Dial(within(t), []string{address}, client.Options{Logger: quiet, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
