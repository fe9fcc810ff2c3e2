package engine

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"time"

	"penstock/engine/dir"
	"penstock/segment"
)

const (
	// scrubLogEvery is how often the commit log, node.json and each topic.json are read, if that is less than the
	// interval. They are small, and no other replica has them.
	scrubLogEvery = time.Hour
	// scrubTopicPause is the time between the files of two topics; there may be many topics.
	scrubTopicPause = time.Millisecond
)

// scrubLog reads what is in no segment: the files of the catalog and the commit log. It repairs damage while this
// process still has the content in memory; after a restart that would be too late. It runs on a goroutine of its own
// until the engine closes.
func (e *Engine) scrubLog() {
	every := min(scrubLogEvery, e.opts.ScrubInterval)
	told := map[uint64]bool{}
	for wait := min(scrubFirstAfter, every); e.host.Pause(wait, e.stop); {
		began := e.host.Instant()
		if !e.scrubCatalog() || !e.scrubCommitLog(told) {
			return
		}
		wait = max(scrubPause, every-e.host.Since(began))
	}
}

// scrubCommitLog reads the files of the commit log once. told has the numbers of the files whose damage was logged. It
// returns false when the engine closes.
func (e *Engine) scrubCommitLog(told map[uint64]bool) bool {
	if e.poisoned.Load() != nil {
		return true
	}
	maps.DeleteFunc(told, func(file uint64, _ bool) bool { return file < e.clog.OldestKept() })
	c := e.clog.NewChecker()
	defer c.Close()
	for {
		n, file, done, err := c.Next()
		e.scrubbed.bytes.Add(uint64(n))
		var bad *segment.CorruptError
		switch {
		case errors.As(err, &bad):
			if !told[file] {
				told[file] = true
				if e.scrubbed.rotten.Add(1) <= maxDamageLines {
					e.log.Error("a file of the commit log is damaged; nothing is lost: this process has what is in it, writes it "+
						"to segments and does without the file. A restart before that is done would meet the damage. Look at the device",
						"file", bad.Path, "byte", bad.Offset, "error", bad.Detail)
				}
			}
			e.flusher.markRotten(file)
		case err != nil:
			e.log.Warn("the scrub could not read the commit log to its end; the next round tries again", "error", err)
			return e.host.Pause(scrubPause, e.stop)
		case done:
			return true
		}
		if !e.host.Pause(time.Duration(n)*time.Second/maxScrubRate, e.stop) {
			return false
		}
	}
}

// scrubFiles reads the header blocks and indexes of a partition's segments. It returns false when the engine closes.
func (e *Engine) scrubFiles(pt *partition, c *segment.Checker) bool {
	goesOn := true
	faults := pt.Log().CheckFiles(c, func(bytes int64) bool {
		e.scrubbed.bytes.Add(uint64(bytes))
		goesOn = e.host.Pause(time.Duration(bytes)*time.Second/maxScrubRate, e.stop)
		return goesOn
	})
	for _, f := range faults {
		if f.Mended {
			e.logMended("the header or the index of a segment was damaged; nothing is lost: it was written anew",
				"file", f.Path, "error", f.Err)
		} else if e.scrubbed.damaged.Add(1) <= maxDamageLines {
			e.log.Error("the header or the index of a segment is damaged and could not be written anew: look at the device",
				"file", f.Path, "error", f.Err)
		}
	}
	return goesOn
}

// logMended counts and logs that something damaged was rewritten.
func (e *Engine) logMended(what string, args ...any) {
	if e.scrubbed.mended.Add(1) <= maxDamageLines {
		e.log.Warn(what, args...)
	}
}

// scrubCatalog reads node.json and each topic.json with their second copies, and in a cluster shortened.json. It
// returns false when the engine closes.
func (e *Engine) scrubCatalog() bool {
	e.scrubNode()
	for _, t := range e.Topics() {
		e.scrubTopic(t)
		if !e.host.Pause(scrubTopicPause, e.stop) {
			return false
		}
	}
	e.members.scrubShortened()
	return true
}

func (e *Engine) scrubNode() {
	e.nodeMu.Lock()
	defer e.nodeMu.Unlock()
	e.scrubTwice(dir.NodeFile, e.node, new(dir.Node), func() error { return nil })
}

func (e *Engine) scrubTopic(t *Topic) {
	e.host.Lock(&e.catalog)
	defer e.catalog.Unlock()
	if !t.deleted.Load() {
		m := new(dir.Topic)
		e.scrubTwice(path.Join(dir.TopicPath(t.uuid), dir.TopicFile), t.meta(), m,
			func() error { return m.Check(t.uuid.String()) })
	}
}

// scrubTwice reads a file and its second copy, and rewrites a damaged one: from the other copy, or, if both are
// damaged, from known. The lock that keeps others from writing these files is held by the caller.
func (e *Engine) scrubTwice(name string, known, read any, check func() error) {
	damaged := false
	var odd error // the file is whole and its content is wrong: that is not decay, so it is left alone
	mended, err := dir.ReadTwice(e.disk, e.log, name, func(data []byte) error {
		odd = nil
		err := dir.UnsealFile(data, read, func() error { odd = check(); return odd })
		damaged = err != nil && odd == nil
		return err
	})
	if mended {
		e.scrubbed.mended.Add(1)
	}
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
	case damaged:
		if err := dir.WriteTwice(e.disk, name, known); err != nil {
			e.log.Error("a file of the data directory and its second copy are damaged and could not be written anew: look "+
				"at the device", "file", name, "error", err)
			return
		}
		e.logMended("a file of the data directory and its second copy were damaged; nothing is lost: both are written "+
			"anew from memory", "file", name, "error", err)
	default:
		e.log.Warn("the scrub could not read a file of the data directory; the next round tries again",
			"file", name, "error", err)
	}
}

// scrubShortened reads shortened.json, and rewrites it if it differs from what this process wrote last. A flipped bit
// there could let a copy with a hole count as whole at the next start. It takes dir.Shortened.file.
func (cn *clusterNode) scrubShortened() {
	damaged, found, err := cn.shortened.Scrub()
	if !damaged {
		return
	}
	cn.e.logMended("the list of copies that a recovery shortened was damaged; nothing is lost: it is written anew",
		"file", dir.ShortenedFile, "error", found)
	if err != nil {
		cn.log.Error("the list of copies that a recovery shortened is damaged and could not be written anew: look at the "+
			"device", "file", dir.ShortenedFile, "error", err)
	}
}
