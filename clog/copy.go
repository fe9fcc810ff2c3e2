package clog

import "errors"

// ErrRecycled says that a file was given back for reuse while CopyFiles read it. What was copied is worth nothing; the
// caller removes it and copies again.
var ErrRecycled = errors.New("clog: a file was given back while it was copied; the copy has to begin again")

// CopyFiles copies the log as it is at one moment between the call and its return: every group that is durable then,
// and nothing of a later group. So a log that is opened on the copy ends with the last of these groups, and finds no
// torn one behind it. CopyFiles calls write with pieces of the files, which are named as in the data directory, file by
// file and from the beginning of each; p is valid during the call. Every group is read from the device and verified:
// damage is a *segment.CorruptError.
//
// The caller keeps anybody from calling Release meanwhile. A file that was released before the call may still be given
// back: then CopyFiles returns ErrRecycled. Any goroutine may call it. It takes Log.mu for a moment.
func (l *Log) CopyFiles(write func(name string, p []byte) error) error {
	type extent struct {
		f   *storedFile
		end int64
	}
	l.mu.Lock()
	extents := make([]extent, 0, len(l.live))
	for i := range l.live {
		f := l.live[i].stored
		extents = append(extents, extent{f, f.end.Load()})
	}
	l.mu.Unlock()
	c := l.NewChecker()
	defer c.Close()
	for _, x := range extents {
		c.file, c.at, c.begun = x.f, 0, false
		for c.at < x.end {
			n, err := c.piece(x.f, x.end)
			if !l.isStored(x.f) {
				return ErrRecycled
			}
			if err == nil {
				err = write(fileName(x.f.number), c.buf[:n])
			}
			if err != nil {
				return err
			}
		}
	}
	// A file that was given back after it was read: the last group may name it as the oldest that is needed, and it is
	// in the copy. So only what was read before counts.
	return nil
}
