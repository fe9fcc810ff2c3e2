package health

import (
	"fmt"
	"sync/atomic"
)

// Startup says how far the start of a node has come. The zero value has not begun; nil may be used like one that nobody
// reads. One goroutine at a time calls Enter and Count, any goroutine Stage.
type Startup struct {
	stage atomic.Pointer[string]
	count atomic.Int64
	of    atomic.Int64 // 0: it is not known, or nothing is counted
	bytes atomic.Bool  // count is in bytes
	note  atomic.Pointer[string]
}

// Note adds to the stages what may keep the start from its end; "": nothing is known. Any goroutine may call it.
func (s *Startup) Note(words string) {
	if s != nil {
		s.note.Store(&words)
	}
}

// Enter begins a stage, described as what the node is doing now.
func (s *Startup) Enter(stage string) {
	if s == nil {
		return
	}
	s.count.Store(0)
	s.of.Store(0)
	s.bytes.Store(false)
	s.stage.Store(&stage)
}

// Count says that the stage has handled n of a number of things.
func (s *Startup) Count(n, of int) {
	if s != nil {
		s.of.Store(int64(of))
		s.count.Store(int64(n))
	}
}

// Bytes says that the stage has handled this many more bytes; below 0, that it begins again.
func (s *Startup) Bytes(more int) {
	switch {
	case s == nil:
	case more < 0:
		s.count.Store(0)
	default:
		s.bytes.Store(true)
		s.count.Add(int64(more))
	}
}

// Stage describes what the node is doing, its progress, and what may keep it from its end.
func (s *Startup) Stage() string {
	if note := s.note.Load(); note != nil && *note != "" {
		return s.progress() + "; " + *note
	}
	return s.progress()
}

func (s *Startup) progress() string {
	stage := s.stage.Load()
	switch n, of := s.count.Load(), s.of.Load(); {
	case stage == nil:
		return "has just begun"
	case s.bytes.Load():
		return fmt.Sprintf("%s: %.1f MiB", *stage, float64(n)/(1<<20))
	case of > 0:
		return fmt.Sprintf("%s: %d of %d", *stage, n, of)
	default:
		return *stage
	}
}
