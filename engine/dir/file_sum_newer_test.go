package dir

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"penstock/engine/meta"
	"penstock/segment/aio/faultaio"
)

// A file that a newer version wrote is not damaged: its second copy, which that version may not have come to write,
// does not replace it.
func TestReadTwiceOfANewerLevel(t *testing.T) {
	const newest = 2
	disk := faultaio.New(faultaio.Options{Seed: 1})
	if err := WriteTwice(disk, NodePath, &Node{Format: FormatOf(newest)}); err != nil {
		t.Fatal(err)
	}
	newer, err := sealFile(&Node{Format: FormatOf(newest + 1)})
	if err = errors.Join(err, disk.WriteFile(NodePath, newer)); err != nil {
		t.Fatal(err)
	}
	_, err = ReadTwice(disk, slog.New(slog.DiscardHandler), NodePath, func(data []byte) error {
		m := new(Node)
		return UnsealFile(data, m, func() error { return m.CheckFormat(newest) })
	})
	after, err2 := disk.ReadFile(NodePath, MaxFileBytes)
	if !errors.Is(err, meta.ErrNewerLevel) || err2 != nil || !bytes.Equal(after, newer) {
		t.Errorf("it is answered %v, and is now %s (%v)", err, after, err2)
	}
}
