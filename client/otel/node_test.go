//go:build linux

package clientotel_test

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"penstock/client"
	"penstock/internal/node"
	"penstock/internal/server/native"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// startNode starts a node on one machine. Programs use the address of a node that runs elsewhere.
func startNode() (address string, stop func()) {
	dir, err := os.MkdirTemp("", "clientotel-")
	if err != nil {
		log.Fatal(err)
	}
	e, err := node.Open(context.Background(), node.Options{DataPath: dir, Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s, err := native.Listen(e, native.Options{Listener: ln, Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	return ln.Addr().String(), func() {
		err := errors.Join(s.Shutdown(context.Background()), <-served, e.Close(), os.RemoveAll(dir))
		if err != nil {
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
