package engine

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"penstock/segment/aio/faultaio"
)

// A file that a newer version wrote is not damaged: its second copy, which that version may not have come to write,
// does not replace it.
func TestReadTwiceOfANewerLevel(t *testing.T) {
	disk := faultaio.New(faultaio.Options{Seed: 1})
	if err := writeTwice(disk, nodeFile, &nodeMeta{Format: formatOf(NewestLevel)}); err != nil {
		t.Fatal(err)
	}
	newer, err := sealFile(&nodeMeta{Format: formatOf(NewestLevel + 1)})
	if err = errors.Join(err, disk.WriteFile(nodeFile, newer)); err != nil {
		t.Fatal(err)
	}
	_, err = readTwice(disk, slog.New(slog.DiscardHandler), nodeFile, func(data []byte) error {
		m := new(nodeMeta)
		return unsealFile(data, m, func() error { return m.checkFormat(NewestLevel) })
	})
	after, err2 := disk.ReadFile(nodeFile, maxMetaBytes)
	if !errors.Is(err, ErrNewerLevel) || err2 != nil || !bytes.Equal(after, newer) {
		t.Errorf("it is answered %v, and is now %s (%v)", err, after, err2)
	}
}

// ReadCatalogFile reads node.json, or the topic.json of a directory's name, as a starting node does. An error: damage
// was seen.
func ReadCatalogFile(data []byte, dir string) error {
	if topic := new(topicMeta); len(dir) == 36 {
		return unsealFile(data, topic, func() error { return topic.check(dir) })
	}
	node := new(nodeMeta)
	return unsealFile(data, node, func() error { return node.checkFormat(NewestLevel) })
}
