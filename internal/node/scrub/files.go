package scrub

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"time"

	"penstock/internal/node/datadir"
	"penstock/segment"
)

const (
	// filesEvery is how often the commit log, node.json and each topic.json are read, unless the interval is shorter.
	// They are small, and no other replica has them.
	filesEvery = time.Hour
	// topicPause is the time between the files of two topics; there may be many topics.
	topicPause = time.Millisecond
)

// ReadFiles reads the stored data outside of segments: the files of the catalog and the commit log. It repairs damage
// while this process still has the contents in memory; after a restart it would be too late. It returns when the engine
// closes.
func (s *Scrub) ReadFiles() {
	told := map[uint64]bool{}
	began := s.n.Host.Instant()
	for more := s.await(began, 0, firstAfter); more; more = s.await(began, errorPause, filesEvery) {
		began = s.n.Host.Instant()
		if !s.readCatalog() || !s.readCommitLog(told) {
			return
		}
	}
}

// readCommitLog reads the files of the commit log once. told holds the numbers of the files whose damage was logged. It
// returns false when the engine closes.
func (s *Scrub) readCommitLog(told map[uint64]bool) bool {
	if s.n.Failed() {
		return true
	}
	maps.DeleteFunc(told, func(file uint64, _ bool) bool { return file < s.n.CommitLog.OldestKept() })
	c := s.n.CommitLog.NewChecker()
	defer c.Close()
	for {
		n, file, done, err := c.Next()
		s.bytes.Add(uint64(n))
		var bad *segment.CorruptError
		switch {
		case errors.As(err, &bad):
			if !told[file] {
				told[file] = true
				if s.rotten.Add(1) <= maxDamageLines {
					s.n.Log.Error("a file of the commit log is damaged; nothing is lost: this process has what is in it, writes it "+
						"to segments and does without the file. A restart before that is done would meet the damage. Look at the device",
						"file", bad.Path, "byte", bad.Offset, "error", bad.Detail)
				}
			}
			s.n.MarkRotten(file)
		case err != nil:
			s.n.Log.Warn("the scrub could not read the commit log to its end; the next round tries again", "error", err)
			return s.pause(errorPause)
		case done:
			return true
		}
		if !s.pauseFor(n) {
			return false
		}
	}
}

// readCatalog reads node.json and each topic.json with their second copies and, in a cluster, shortened.json. It
// returns false when the engine closes.
func (s *Scrub) readCatalog() bool {
	s.n.WithNodeFile(func(known *datadir.Node) {
		s.readTwice(datadir.NodePath, known, new(datadir.Node), func() error { return nil })
	})
	for _, with := range s.n.Topics() {
		with(s.readTopic)
		if !s.pause(topicPause) {
			return false
		}
	}
	if s.n.Shortened != nil {
		s.readShortened()
	}
	return true
}

func (s *Scrub) readTopic(known *datadir.Topic) {
	m := new(datadir.Topic)
	s.readTwice(path.Join(datadir.TopicPath(known.ID), datadir.TopicFile), known, m,
		func() error { return m.Check(known.ID.String()) })
}

// readTwice reads a file and its second copy, and rewrites the damaged one from the other, or both from known if both
// are damaged. The caller holds the lock under which these files are written.
func (s *Scrub) readTwice(name string, known, read any, check func() error) {
	damaged := false
	var odd error // the file is intact but its content is wrong: that is not decay, so leave it alone
	mended, err := datadir.ReadTwice(s.n.Disk, s.n.Log, name, func(data []byte) error {
		odd = nil
		err := datadir.UnsealFile(data, read, func() error { odd = check(); return odd })
		damaged = err != nil && odd == nil
		return err
	})
	if mended {
		s.mended.Add(1)
	}
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
	case damaged:
		if err := datadir.WriteTwice(s.n.Disk, name, known); err != nil {
			s.n.Log.Error("a file of the data directory and its second copy are damaged and could not be written anew: look "+
				"at the device", "file", name, "error", err)
			return
		}
		s.logMended("a file of the data directory and its second copy were damaged; nothing is lost: both are written "+
			"anew from memory", "file", name, "error", err)
	default:
		s.n.Log.Warn("the scrub could not read a file of the data directory; the next round tries again",
			"file", name, "error", err)
	}
}

// readShortened reads shortened.json, and rewrites it if it differs from what this process wrote last. Because of a
// flipped bit there, a copy with a hole could count as whole after the next start. It takes datadir.Shortened.file.
func (s *Scrub) readShortened() {
	damaged, found, err := s.n.Shortened.Scrub()
	if !damaged {
		return
	}
	s.logMended("the list of copies that a recovery shortened was damaged; nothing is lost: it is written anew",
		"file", datadir.ShortenedFile, "error", found)
	if err != nil {
		s.n.Log.Error("the list of copies that a recovery shortened is damaged and could not be written anew: look at the "+
			"device", "file", datadir.ShortenedFile, "error", err)
	}
}
