// Package audit records who changed what, and who was refused.
//
// Every change that a client asks for through HTTP, through the NSQ protocol or under /cluster/ is one line in the log
// and one Entry in memory, whether it was done or not; so is every failed authentication and every refused permission.
// Publishing and consuming are no changes. An entry never has a secret. Entries are in memory only: after a crash the
// log has them.
package audit

import (
	"log/slog"
	"sync"
	"time"

	"penstock/internal/clip"
)

const (
	// DefaultCount is how many entries are kept in memory.
	DefaultCount = 1000

	// MaxRefusalsPerSecond bounds the refusals that are recorded within a second, so that somebody who guesses secrets
	// can neither fill the log nor push the changes out of it. The next one that is recorded says how many were not.
	MaxRefusalsPerSecond = 10

	// maxTextBytes bounds each text of an entry.
	maxTextBytes = 1 << 10

	// anyone is who sent a request that proved nothing.
	anyone = "anyone"
)

// Entry is one change or refusal.
type Entry struct {
	Time   time.Time `json:"time"`
	Kind   Kind      `json:"kind"`
	Who    string    `json:"who"`             // the name of the token, the auth server's identity or the certificate
	From   string    `json:"from"`            // the client's address
	What   string    `json:"what"`            // the command, or the method and path
	Names  string    `json:"names,omitempty"` // the topic and channel, and other parameters
	Body   string    `json:"body,omitempty"`  // the beginning of the request's body
	Result string    `json:"result"`          // OK, or why it was not done

	Suppressed int `json:"suppressed,omitempty"` // refusals before this one that were not recorded
}

// Kind says what became of a request.
type Kind string

// The kinds of entries.
const (
	Done    Kind = "done"
	Failed  Kind = "failed"  // the client was allowed to ask for the change, but it was not made
	Refused Kind = "refused" // the client did not prove who it is, or may not do this
)

// Log keeps the newest entries and writes each to the node's log. Any goroutine may call its methods. Nothing is called
// while mu is held.
type Log struct {
	log *slog.Logger
	now func() time.Time

	mu         sync.Mutex // guards the fields below
	entries    []Entry    // a ring once it is full
	next       int        // where in the full ring the next entry goes: the oldest one
	size       int        // ≥ 1
	second     time.Time  // when the second began in which refusals are counted
	refusals   int        // recorded in this second; ≤ MaxRefusalsPerSecond
	suppressed int        // since the last recorded refusal
}

// New returns a Log that keeps count entries; 0: DefaultCount.
func New(log *slog.Logger, count int) *Log {
	if count == 0 {
		count = DefaultCount
	}
	return &Log{log: log, size: count, now: time.Now}
}

// Changed records a change. An empty Result means that it was made.
func (l *Log) Changed(e Entry) {
	e.Kind = Failed
	if e.Result == "" {
		e.Kind, e.Result = Done, "OK"
	}
	l.record(e)
}

// Refused records that a client may not do what it asked for.
func (l *Log) Refused(e Entry, why string) {
	e.Kind, e.Result = Refused, why
	l.record(e)
}

func (l *Log) record(e Entry) {
	e.Time = l.now()
	if e.Who == "" {
		e.Who = anyone
	}
	for _, text := range []*string{&e.Who, &e.What, &e.Names, &e.Body, &e.Result} {
		*text = clip.Text(*text, maxTextBytes)
	}
	if !l.keep(&e) {
		return
	}
	attrs := []any{"who", e.Who, "from", e.From, "what", e.What, "names", e.Names, "result", e.Result}
	if e.Body != "" {
		attrs = append(attrs, "body", e.Body)
	}
	switch {
	case e.Kind == Done:
		l.log.Info("audit: a change was made", attrs...)
	case e.Kind == Failed:
		l.log.Warn("audit: a change was not made", attrs...)
	case e.Suppressed > 0:
		l.log.Warn("audit: refusing a client", append(attrs, "suppressed", e.Suppressed)...)
	default:
		l.log.Warn("audit: refusing a client", attrs...)
	}
}

// keep puts the entry into the ring. It returns false if the entry is one refusal too many.
func (l *Log) keep(e *Entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Kind == Refused {
		if e.Time.Sub(l.second) >= time.Second {
			l.second, l.refusals = e.Time, 0
		}
		if l.refusals >= MaxRefusalsPerSecond {
			l.suppressed++
			return false
		}
		l.refusals++
		e.Suppressed, l.suppressed = l.suppressed, 0
	}
	if len(l.entries) < l.size {
		l.entries = append(l.entries, *e)
		return true
	}
	l.entries[l.next] = *e
	l.next = (l.next + 1) % l.size
	return true
}

// List is the answer of GET /audit: the newest entries, with the oldest first.
type List struct {
	Entries    []Entry `json:"entries"`
	Suppressed int     `json:"suppressed"` // refusals since the last entry that were not recorded
}

// List returns the entries in memory.
func (l *Log) List() List {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := List{Entries: make([]Entry, 0, len(l.entries)), Suppressed: l.suppressed}
	out.Entries = append(append(out.Entries, l.entries[l.next:]...), l.entries[:l.next]...)
	return out
}
