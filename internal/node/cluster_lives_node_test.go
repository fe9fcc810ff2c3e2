package node

import (
	"log/slog"
	"net"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/tests/support/faultaio"
)

// A node asks the address of a living process of its name, unless that is its own address, which it has bound then.
func TestHolder(t *testing.T) {
	cn := bareNode()
	cn.address, cn.boot = "here:1", uuid.New()
	disk, log := faultaio.New(faultaio.Options{}), slog.New(slog.DiscardHandler)
	var err error
	if cn.e.node, err = datadir.OpenNodeFile(disk, log, "n", NewestLevel, true, uuid.New); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	refuses, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := refuses.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		address string
		want    meta.Holder
	}{
		{"here:1", meta.HolderGone},
		{"", meta.HolderGone}, // of a version that did not say
		{refuses.Addr().String(), meta.HolderGone},
		{silent.Addr().String(), meta.HolderSilent},
	} {
		row := &meta.Node{Name: "n", Peer: c.address, Boot: uuid.New(), Live: true}
		if got := cn.holder(t.Context(), row, uuid.New()); got != c.want {
			t.Errorf("at %q: %d, want %d", c.address, got, c.want)
		}
	}
}
