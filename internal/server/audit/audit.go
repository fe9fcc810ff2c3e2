// Package audit records who changed what, and who was refused.
//
// Every change that a client asks for through HTTP, through the NSQ protocol or under /cluster/ is one line in the log
// and one Entry in memory, whether it was done or not. Every failed authentication and every refused permission is an
// Entry, too; the log has the first line of each kind at once, and then how many there were in a minute (package
// sparing). Publishing and consuming are no changes. An entry never has a secret.
//
// The newest entries are in memory, and in the folder audit of the data directory (Log.Keep), where the next start
// finds them. Who proved nothing and was refused is in a share of its own, in memory and on disk, so that strangers
// cannot push out what people did.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/internal/clip"
	"penstock/internal/server/lines"
	"penstock/internal/sparing"
)

const (
	// DefaultCount is how many entries are kept in memory, and a quarter as many refusals of strangers.
	DefaultCount = 1000

	// DefaultBytes bounds what is kept on disk.
	DefaultBytes = 16 << 20

	// MaxRefusalsPerSecond bounds the refusals that are recorded within a second, those of strangers apart from others,
	// so that somebody who guesses secrets cannot push the others out at once. The next one that is recorded says how
	// many were not.
	MaxRefusalsPerSecond = 10

	// maxTextBytes bounds each text of an entry, and maxStrangerBytes each text of a stranger's.
	maxTextBytes     = 1 << 10
	maxStrangerBytes = sparing.MaxTextBytes

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

// Log keeps the newest entries and tells the node's log of them. Any goroutine may call its methods.
type Log struct {
	log     *slog.Logger
	sparing *sparing.Log // of refusals
	now     func() time.Time
	started time.Time

	mu        sync.Mutex // guards the shares; below it is the mutex of lines.Writer, and nothing else is called
	people    share      // what was changed, and who is known and was refused
	strangers share      // who proved nothing and was refused
}

// share is one of the two parts of a Log, which do not take room from each other.
type share struct {
	name       string
	entries    []Entry       // the oldest first
	size       int           // ≥ 1
	since      time.Time     // all entries since then are here
	gone       time.Time     // the newest entry that is not; zero: all are
	second     time.Time     // when the second began in which refusals are counted
	refusals   int           // recorded in this second; ≤ MaxRefusalsPerSecond
	suppressed int           // since the last recorded refusal
	file       *lines.Writer // nil: in memory only
}

// New returns a Log that keeps count entries in memory; 0: DefaultCount.
func New(log *sparing.Log, count int) *Log {
	l := &Log{log: log.Logger(), sparing: log, now: time.Now}
	l.started = l.now()
	l.people, l.strangers = share{name: "changes", since: l.started}, share{name: "strangers", since: l.started}
	l.Limit(count, 0)
	return l
}

// Limit changes what New and Keep were given. Of entries in memory the oldest go that are too many; the files become
// smaller when the next ones begin.
func (l *Log) Limit(count int, maxBytes int64) {
	count, maxBytes = cmp.Or(count, DefaultCount), cmp.Or(maxBytes, DefaultBytes)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.people.limit(count, maxBytes/2)
	l.strangers.limit(max(1, count/4), maxBytes/2)
}

func (s *share) limit(count int, maxBytes int64) {
	if s.size = count; len(s.entries) > count {
		gone := len(s.entries) - count
		s.gone = s.entries[gone-1].Time
		s.since, s.entries = s.gone, slices.Clone(s.entries[gone:])
	}
	if s.file != nil {
		s.file.Limit(maxBytes)
	}
}

// head is the first line of a file: since when the files have all entries.
type head struct {
	Kind  Kind      `json:"kind"`
	Since time.Time `json:"since"`
}

// Keep keeps the entries in a directory from now on, where it takes up what an earlier process left. maxBytes bounds
// both shares together; 0: DefaultBytes. No other process writes there: the caller holds the data directory's lock. It
// is called once, and Close then, too.
func (l *Log) Keep(dir string, maxBytes int64) {
	maxBytes = cmp.Or(maxBytes, DefaultBytes)
	for _, sh := range []*share{&l.people, &l.strangers} {
		o := lines.Options{Dir: dir, Name: sh.name, MaxBytes: maxBytes / 2, Log: l.log, What: "the audit"}
		old, err := lines.Read(&o)
		if err != nil {
			l.log.Warn("what the audit has on disk cannot be read: it begins anew", "dir", dir, "error", err)
		}
		begun := l.started // of the first file, if there is none yet
		if len(old) > 0 {
			begun = time.Time{}
		}
		o.Head = func() []byte {
			at := begun
			if begun = (time.Time{}); at.IsZero() {
				at = l.now() // this file does not have what came before
			}
			return encode(&head{begins, at.UTC()})
		}
		l.mu.Lock()
		sh.file = lines.Start(o)
		sh.takeUp(old)
		l.mu.Unlock()
	}
}

// begins is the kind of the first line of a file, which is no entry.
const begins Kind = "begins"

func encode(e any) []byte {
	text, err := json.Marshal(e)
	if err != nil {
		panic("BUG: " + err.Error()) // it has only texts, a number and times
	}
	return text
}

// takeUp puts the entries of an earlier process, which were read from the disk, in front of those of this process, and
// writes the latter to the disk.
func (s *share) takeUp(old [][]byte) {
	now := s.list()
	s.entries = nil
	first := true // of the lines that make sense
	for _, text := range old {
		var e struct {
			Since time.Time
			Entry
		}
		if json.Unmarshal(text, &e) != nil {
			continue // a crash tore it
		}
		if at := e.Since; first && !at.IsZero() {
			s.since = at
		} else if first {
			s.since = e.Time
		}
		first = false
		if e.Kind != begins {
			s.put(&e.Entry)
		}
	}
	for i := range now {
		s.put(&now[i])
		s.file.Append(encode(&now[i]))
	}
}

// Close puts what waits for the disk on it, for as long as ctx lasts.
func (l *Log) Close(ctx context.Context) {
	for _, s := range []*share{&l.people, &l.strangers} {
		if s.file != nil {
			s.file.Close(ctx)
		}
	}
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
	e.Time = l.now().UTC()
	if e.Who == "" {
		e.Who = anyone
	}
	most := maxTextBytes
	if e.byStranger() {
		most = maxStrangerBytes
	}
	for _, text := range []*string{&e.Who, &e.What, &e.Names, &e.Body, &e.Result} {
		*text = clip.Text(*text, most)
	}
	l.keep(&e)
	attrs := []any{"who", e.Who, "from", e.From, "what", e.What, "names", e.Names, "result", e.Result}
	if e.Body != "" {
		attrs = append(attrs, "body", e.Body)
	}
	switch e.Kind {
	case Done:
		l.log.Info("audit: a change was made", attrs...)
	case Failed:
		l.log.Warn("audit: a change was not made", attrs...)
	case Refused:
		// Who guesses tokens must not hide behind who shows none.
		which, _, _ := strings.Cut(e.Result, " ")
		if !e.byStranger() {
			which += " known"
		}
		l.sparing.Line(slog.LevelWarn, which, "audit: refusing a client", attrs...)
	}
}

// byStranger says in which share an entry is.
func (e *Entry) byStranger() bool { return e.Kind == Refused && e.Who == anyone }

// keep puts the entry into its share, unless it is one refusal too many.
func (l *Log) keep(e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.people
	if e.byStranger() {
		s = &l.strangers
	}
	if e.Kind == Refused {
		if e.Time.Sub(s.second) >= time.Second {
			s.second, s.refusals = e.Time, 0
		}
		if s.refusals >= MaxRefusalsPerSecond {
			s.suppressed++
			return
		}
		s.refusals++
		e.Suppressed, s.suppressed = s.suppressed, 0
	}
	s.put(e)
	if s.file != nil {
		s.file.Append(encode(e))
	}
}

// put adds an entry. For one too many, the oldest goes of the one who has the most, so that nobody can push out what
// another one did.
func (s *share) put(e *Entry) {
	s.entries = append(s.entries, *e)
	if len(s.entries) <= s.size {
		return
	}
	most, of := "", map[string]int{}
	for i := range s.entries {
		who := s.entries[i].Who
		if of[who]++; of[who] > of[most] {
			most = who
		}
	}
	i := slices.IndexFunc(s.entries, func(e Entry) bool { return e.Who == most })
	if at := s.entries[i].Time; at.After(s.gone) {
		s.gone = at
	}
	s.since = s.gone
	s.entries = slices.Delete(s.entries, i, i+1)
}

// list returns the entries, the oldest first.
func (s *share) list() []Entry { return slices.Clone(s.entries) }

// List is the answer of GET /audit: the newest entries, with the oldest first.
type List struct {
	Entries    []Entry `json:"entries"`
	Suppressed int     `json:"suppressed"` // refusals since the last entry that were not recorded
	Known
}

// Known says what a list of a node lacks.
type Known struct {
	// The node has everything since these times, and nothing of before is to be concluded from the list. Strangers are
	// those who were refused and had proved nothing.
	Since          time.Time `json:"since,omitzero"`
	StrangersSince time.Time `json:"strangers_since,omitzero"`
	// NotWritten counts the entries since the node's start that the disk did not take: a restart forgets them.
	NotWritten uint64 `json:"not_written,omitempty"`
}

// List returns the entries in memory.
func (l *Log) List() List {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := List{
		Entries: slices.Concat(l.people.list(), l.strangers.list()), Suppressed: l.people.suppressed + l.strangers.suppressed,
		Known: Known{Since: l.people.since.UTC(), StrangersSince: l.strangers.since.UTC(), NotWritten: l.notWritten()},
	}
	slices.SortStableFunc(out.Entries, func(a, b Entry) int { return a.Time.Compare(b.Time) })
	return out
}

// NotWritten returns how many entries the disk did not take since the node's start.
func (l *Log) NotWritten() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.notWritten()
}

func (l *Log) notWritten() (n uint64) {
	for _, s := range []*share{&l.people, &l.strangers} {
		if s.file != nil {
			n += s.file.Lost()
		}
	}
	return n
}

// Newest returns the newest count entries of a list in which the oldest is first. Strangers get at most a quarter of
// them, or what others leave. entry returns the entry in an element.
func Newest[T any](all []T, count int, entry func(*T) *Entry) []T {
	strangers := 0
	for i := range all {
		if entry(&all[i]).byStranger() {
			strangers++
		}
	}
	people := min(len(all)-strangers, count-min(strangers, count/4))
	strangers = min(strangers, count-people)
	out := make([]T, 0, people+strangers)
	for i := len(all) - 1; i >= 0; i-- {
		left := &people
		if entry(&all[i]).byStranger() {
			left = &strangers
		}
		if *left > 0 {
			*left--
			out = append(out, all[i])
		}
	}
	slices.Reverse(out)
	return out
}
