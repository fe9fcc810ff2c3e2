// Package sparing writes lines into the log that strangers can cause as often as they like: refused connections, failed
// handshakes, wrong tokens. Of each kind it writes the first line at once, and then one line per Interval, which says
// how many were left out. It is the only such limit for what comes from outside; what the engine itself meets again and
// again has loglimit.Limiter, on the engine's clock.
package sparing

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/clip"
)

const (
	// Interval is the time in which a kind has one line, besides the first.
	Interval = time.Minute
	// MaxKinds bounds the kinds that are told apart at a time. Those beyond it count as one.
	MaxKinds = 64
	// MaxTextBytes bounds each text of a line that is not Own.
	MaxTextBytes = 256
)

// Own is a text of this program, which a line has at full length.
type Own string

// Log writes such lines. The servers of a node share one. Any goroutine may call its methods, with any lock held that
// may be held while something is logged. mu guards the kinds and ended; nothing is called while it is held.
type Log struct {
	log     *slog.Logger
	leftOut atomic.Uint64

	mu    sync.Mutex
	kinds map[name]*kind // of lines that were written in the last Interval; at most MaxKinds, and the one of all others
	ended bool
}

// name tells kinds apart.
type name struct{ text, which string }

// kind is what is known of lines of one kind.
type kind struct {
	since time.Time // when its last line was written
	more  int       // lines that were left out since
	last  line      // the newest of these
	timer *time.Timer
}

type line struct {
	level slog.Level
	text  string
	args  []any
}

// New returns a Log that writes to log.
func New(log *slog.Logger) *Log { return &Log{log: log, kinds: map[name]*kind{}} }

// Logger returns what l writes to, for lines that nobody else can cause.
func (l *Log) Logger() *slog.Logger { return l.log }

// LeftOut returns how many lines were left out so far.
func (l *Log) LeftOut() uint64 { return l.leftOut.Load() }

// Info writes a line, or counts it. The text is its kind. args are as in slog.
func (l *Log) Info(text string, args ...any) { l.Line(slog.LevelInfo, "", text, args...) }

// Warn writes a line, or counts it.
func (l *Log) Warn(text string, args ...any) { l.Line(slog.LevelWarn, "", text, args...) }

// Line writes a line, or counts it. Its kind is the text with which, which must not be a stranger's choice.
func (l *Log) Line(level slog.Level, which, text string, args ...any) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	ln := line{level, text, args}
	if l.counted(name{text, which}, ln) {
		l.leftOut.Add(1)
		return
	}
	l.write(ln)
}

// counted reports whether the line is one of those that are only counted.
func (l *Log) counted(n name, ln line) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[n]
	if k == nil && len(l.kinds) >= MaxKinds {
		l.forget()
		if len(l.kinds) >= MaxKinds {
			n = name{}
			k = l.kinds[n]
		}
	}
	now := time.Now()
	switch {
	case k == nil:
		l.kinds[n] = &kind{since: now}
		return false
	case k.more == 0 && now.Sub(k.since) >= Interval:
		k.since = now
		return false
	}
	k.more, k.last = k.more+1, ln
	if k.timer == nil && !l.ended {
		k.timer = time.AfterFunc(Interval-now.Sub(k.since), func() { l.tell(k) })
	}
	return true
}

// forget removes the kinds of which nothing is to be told. mu is held.
func (l *Log) forget() {
	for n, k := range l.kinds {
		if k.more == 0 && time.Since(k.since) >= Interval {
			delete(l.kinds, n)
		}
	}
}

// tell writes how many lines of a kind were left out, unless that was told.
func (l *Log) tell(k *kind) {
	l.mu.Lock()
	more, ln, since := k.more, k.last, time.Since(k.since)
	k.more, k.last, k.timer, k.since = 0, line{}, nil, time.Now()
	l.mu.Unlock()
	if more > 0 {
		ln.text += fmt.Sprintf(": and %d more in the last %v, of which this is the newest", more, since.Round(time.Second))
		l.write(ln)
	}
}

// write writes a line with texts that are not too long.
func (l *Log) write(ln line) {
	args := make([]any, len(ln.args))
	for i, a := range ln.args {
		switch v := a.(type) {
		case string:
			a = clip.Text(v, MaxTextBytes)
		case error:
			a = clip.Text(v.Error(), MaxTextBytes)
		case Own:
			a = string(v)
		}
		args[i] = a
	}
	l.log.Log(context.Background(), ln.level, ln.text, args...)
}

// Close writes what is left to tell. Lines that come later are written or counted, without a count in the log.
func (l *Log) Close() {
	l.mu.Lock()
	l.ended = true
	var open []*kind
	for _, k := range l.kinds {
		if k.timer != nil && k.timer.Stop() {
			open = append(open, k)
		}
	}
	l.mu.Unlock()
	for _, k := range open {
		l.tell(k)
	}
}
