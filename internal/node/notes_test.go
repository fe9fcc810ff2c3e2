package node_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"path"
	"strings"
	"testing"
	"time"

	"penstock/clog"
	"penstock/internal/node"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// noteOf is the name of the note of where the log of a topic's partition begins; "": there is none.
func noteOf(t *testing.T, d *faultaio.Disk, topic string) string {
	t.Helper()
	in := path.Dir(segmentFiles(t, d, topic)[0])
	for _, f := range list(t, d, in) {
		if strings.HasSuffix(f.Name(), ".start") {
			return path.Join(in, f.Name())
		}
	}
	return ""
}

// markFlags reads the flags of both slots of log.mark, and changes them to what change returns.
func markFlags(t *testing.T, d *faultaio.Disk, change func(flags byte) byte) (all byte) {
	t.Helper()
	p, err := d.ReadFile(clog.MarkName, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for slot := range 2 {
		m := p[slot*len(p)/2:][:clog.LogMarkBytes]
		if all |= m[5]; change != nil && m[0] != 0 {
			m[5] = change(m[5])
			binary.LittleEndian.PutUint32(m[60:], crc32.Checksum(m[:60], crc32.MakeTable(crc32.Castagnoli)))
		}
	}
	if change != nil {
		err = d.WriteFile(clog.MarkName, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Below the feature level that requires a mark of the commit log, a version may run that leaves the mark as it is: the
// mark must not say that the notes are right.
func TestNotesBelowTheLevel(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.MaxLevel, o.RetentionInterval = 3, 5*time.Millisecond })
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	trimUnread(t, e, topic) // retention has run, and files of the commit log were begun since
	trimUnread(t, e, topic)
	if flags := markFlags(t, disk, nil); flags != 0 {
		t.Errorf("the mark has flags %x", flags)
	}
	if noteOf(t, disk, "t") == "" {
		t.Error("there is no note of what retention has removed")
	}
}

// A version without notes has run on the directory and has removed segments. Nothing of that is taken for a loss. The
// notes are made once, and from then on the loss of the first segment is noticed, also together with its index.
func TestNotesAreMadeOnce(t *testing.T) {
	disk := newDisk()
	often := func(o *node.Options) { o.RetentionInterval = 5 * time.Millisecond }
	e := openOnDisk(t, disk, often)
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	trimUnread(t, e, topic)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	disk = disk.Kill(1)
	note := noteOf(t, disk, "t")
	if err := disk.Remove(note); note == "" || err != nil {
		t.Fatalf("note %q: %v", note, err)
	}
	markFlags(t, disk, func(byte) byte { return 0 })

	e = openOnDisk(t, disk, often)
	if err := e.Health(); err != nil {
		t.Errorf("what the older version removed is missed: %v", err)
	}
	eventually(t, "the notes are made", func() bool {
		return noteOf(t, disk, "t") == note && markFlags(t, disk, nil) != 0
	})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	disk = disk.Kill(1)
	first := segmentFiles(t, disk, "t")[0]
	_ = disk.Remove(strings.TrimSuffix(first, ".seg") + ".idx")
	if err := disk.Remove(first); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk)
	var corrupt *segment.CorruptError
	if err := e.Health(); !errors.As(err, &corrupt) || corrupt.Path != first {
		t.Errorf("%s was removed, and Health says %v", first, err)
	}
}

// A new directory's notes are right before anything can be removed: they are believed before retention runs.
func TestNotesOfANewDirectory(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.RetentionInterval = time.Hour })
	publish(t, topicOf(t, e, "t"), "m")
	eventually(t, "the mark says that the notes are right", func() bool { return markFlags(t, disk, nil) != 0 })
}
