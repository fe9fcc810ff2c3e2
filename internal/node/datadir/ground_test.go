package datadir

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// Whoever replaces or removes node.json is found out, and this process itself may replace it as often as it wants.
func TestNodeFileIsWatched(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	f := openNode(t, disk, 2, true)
	for i, change := range []func() error{
		func() error { return nil },
		func() error { return f.Raise(2) },
		func() error { return f.Adopt(uuid.UUID{1}) },
		func() (err error) {
			f.With(func(known *Node) { err = WriteTwice(disk, NodePath, known) })
			return err
		},
		func() error { return nil },
	} {
		if err := errors.Join(change(), f.CheckGround(), f.CheckGround()); err != nil {
			t.Errorf("change %d of its own: %v", i, err)
		}
	}
	text, err := disk.ReadFile(NodePath, MaxFileBytes)
	if err != nil {
		t.Fatal(err)
	}
	f.With(func(*Node) {
		if err := disk.Remove(NodePath); err != nil {
			t.Fatal(err)
		}
		if err := f.CheckGround(); err != nil {
			t.Errorf("it may be replaced right now: %v", err)
		}
		if err := disk.WriteFile(NodePath, text); err != nil {
			t.Fatal(err)
		}
	})
	if err := f.CheckGround(); err != nil {
		t.Errorf("it was replaced by its owner: %v", err)
	}
	if err := disk.WriteFile(NodePath, text); err != nil {
		t.Fatal(err)
	}
	lost := (*aio.GroundError)(nil)
	if err := f.CheckGround(); !errors.As(err, &lost) || !strings.Contains(err.Error(), "node.json was replaced") {
		t.Errorf("it was replaced: %v", err)
	}
	if err := disk.Remove(NodePath); err != nil {
		t.Fatal(err)
	}
	if err := f.CheckGround(); !errors.As(err, &lost) || !strings.Contains(err.Error(), "node.json was removed") {
		t.Errorf("it was removed: %v", err)
	}
}
