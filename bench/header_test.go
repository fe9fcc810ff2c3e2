package bench

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"penstock/internal/node"
)

// TestMain prints the header in the form that benchstat keeps with the results.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.bench"); f != nil && f.Value.String() != "" {
		if err := header(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func header() error { return headerIn("") }

// headerIn says it of the file system of a directory; empty: of that for temporary files.
func headerIn(parent string) error {
	dir, err := os.MkdirTemp(parent, "penstock-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e, err := node.Open(context.Background(), node.Options{
		DataPath: dir, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	defer e.Close()
	i := e.Info()
	fmt.Printf("kernel: %s\nfilesystem: %s\ndevice: %s (cache %s)\nio: %s (%s), direct=%v\n",
		i.Kernel, i.FileSystem, i.Device, i.DeviceCache, i.IOEngine, i.IOReason, i.Direct)
	fmt.Println("durability: every answer after a write and a flush to stable storage")
	return nil
}
