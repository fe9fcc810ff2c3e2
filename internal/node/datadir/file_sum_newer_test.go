package datadir

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"penstock/internal/meta"
	"penstock/tests/support/faultaio"
)

// A file that a newer version wrote is not damaged: its second copy does not replace it. The newer version may not have
// come to write the copy.
func TestReadTwiceOfANewerLevel(t *testing.T) {
	const newest = 2
	for _, c := range []struct {
		name       string
		old, newer any
		decode     func(data []byte) error
	}{
		{NodePath, &Node{Format: FormatOf(newest)}, &Node{Format: FormatOf(newest + 1)}, func(data []byte) error {
			m := new(Node)
			return UnsealFile(data, m, func() error { return m.CheckFormat(newest) })
		}},
		{
			TopicFile, &Topic{Format: TopicFormat, Name: "t", Partitions: 1}, &Topic{Format: TopicFormat + 1},
			func(data []byte) error {
				m := new(Topic)
				return UnsealFile(data, m, func() error { return m.Check(m.ID.String()) })
			},
		},
	} {
		disk := faultaio.New(faultaio.Options{Seed: 1})
		if err := WriteTwice(disk, c.name, c.old); err != nil {
			t.Fatal(err)
		}
		newer, err := SealFile(c.newer)
		if err = errors.Join(err, disk.WriteFile(c.name, newer)); err != nil {
			t.Fatal(err)
		}
		_, err = ReadTwice(disk, slog.New(slog.DiscardHandler), c.name, c.decode)
		after, err2 := disk.ReadFile(c.name, MaxFileBytes)
		if !errors.Is(err, meta.ErrNewerLevel) || err2 != nil || !bytes.Equal(after, newer) {
			t.Errorf("it is answered %v, and is now %s (%v)", err, after, err2)
		}
	}
}
