package segment

import (
	"penstock/segment/aio"
)

// CheckGround returns a *aio.GroundError if the name of the log's newest segment file does not lead to that file any
// more. The identity of the file is the one that its name led to at the first call after the file was made or opened:
// no descriptor stays open. The engine's watch of its ground calls it, one goroutine at a time. It takes mu for a
// moment; io only if something differs, because a holder of io may be replacing the file. It may hang as long as the
// disk does.
func (l *Log) CheckGround() error {
	if l.checkNewest() == nil {
		return nil
	}
	l.io.Lock()
	defer l.io.Unlock()
	return l.checkNewest()
}

func (l *Log) checkNewest() error {
	l.mu.Lock()
	var f *segFile
	if n := len(l.segs); n > 0 && l.segs[n-1].broken == nil {
		f = l.segs[n-1]
	}
	l.mu.Unlock()
	if f == nil {
		return nil
	}
	is, err := l.disk.Identify(f.path)
	was := f.ground.Load()
	if was == nil {
		was = new(aio.FileID)
		*was = is
	}
	if lost := aio.CompareGround(f.path, *was, is, err); lost != nil {
		return lost
	}
	if err == nil {
		f.ground.CompareAndSwap(nil, was)
	}
	return nil
}
