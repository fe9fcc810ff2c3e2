package engine

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
	if err := writeTwice(disk, nodeFile, &nodeMeta{Format: formatOf(newest)}); err != nil {
		t.Fatal(err)
	}
	newer, err := sealFile(&nodeMeta{Format: formatOf(newest + 1)})
	if err = errors.Join(err, disk.WriteFile(nodeFile, newer)); err != nil {
		t.Fatal(err)
	}
	_, err = readTwice(disk, slog.New(slog.DiscardHandler), nodeFile, func(data []byte) error {
		m := new(nodeMeta)
		return unsealFile(data, m, func() error { return m.checkFormat(newest) })
	})
	after, err2 := disk.ReadFile(nodeFile, maxMetaBytes)
	if !errors.Is(err, meta.ErrNewerLevel) || err2 != nil || !bytes.Equal(after, newer) {
		t.Errorf("it is answered %v, and is now %s (%v)", err, after, err2)
	}
}
