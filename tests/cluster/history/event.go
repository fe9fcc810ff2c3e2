package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"
)

// Op says what happened.
type Op string

// The events. What each one's fields mean stands behind it.
const (
	// Publish: Client sends the values [Seq, Seq+Count) to Topic over Conn to Node. Exactly one of OK, Fail, Unknown
	// follows; none is Unknown.
	Publish Op = "publish"
	OK      Op = "ok"      // of the Publish with this Client and Seq
	Fail    Op = "fail"    // certainly not done; Detail is the class of the error
	Unknown Op = "unknown" // the answer never came, or it says that nobody knows

	// Channel: Channel of Topic is asked for. Exists: it was answered. First marks the first channel of its topic, which
	// also gets what was published before it.
	Channel Op = "channel"
	Exists  Op = "exists"

	Deliver Op = "deliver" // From and Seq name the value; Message, Attempts as on the wire
	Garbage Op = "garbage" // a delivery whose body is nobody's value; Detail is its start
	Fin     Op = "fin"     // FIN of Message was written to Conn
	FinErr  Op = "fin_err" // and was refused
	Open    Op = "open"    // Conn of Client to Node
	Close   Op = "close"   // the client knows that it is gone

	// Fault and Heal bracket what the nemesis does. Seq numbers the fault, Detail names its kind, Node whom it hits. At
	// Heal everything that the fault took away was given back: from then on the cluster owes its services.
	Fault Op = "fault"
	Heal  Op = "heal"
	// Note is for people.
	Note Op = "note"
)

// Event is one line of a history.
type Event struct {
	At     time.Duration `json:"at"` // nanoseconds since the run began, one monotonic clock for all clients
	Client string        `json:"client"`
	Op     Op            `json:"op"`

	Topic    string `json:"topic,omitempty"`
	Channel  string `json:"channel,omitempty"`
	First    bool   `json:"first,omitempty"`
	From     string `json:"from,omitempty"` // of a delivery: the client that published it
	Seq      uint64 `json:"seq,omitempty"`
	Count    uint64 `json:"count,omitempty"` // of a Publish: values; 0 is 1
	Node     string `json:"node,omitempty"`
	Conn     uint64 `json:"conn,omitempty"` // numbered by the client
	Message  uint64 `json:"message,omitempty"`
	Attempts uint16 `json:"attempts,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

// count is how many values a Publish carries.
func (e *Event) count() uint64 { return max(e.Count, 1) }

// Recorder collects the events of a run and keeps a copy of each client's in a file of its own. Safe for concurrent
// use.
type Recorder struct {
	start time.Time
	dir   string

	mu     sync.Mutex
	events []Event
	files  map[string]*clientFile
	err    error
}

// clientFile is one client's lines on disk.
type clientFile struct {
	f *os.File
	w *bufio.Writer
	e *json.Encoder
}

// NewRecorder starts the clock. Files go to dir, which must exist; "" keeps the history in memory only.
func NewRecorder(dir string) *Recorder {
	return &Recorder{start: time.Now(), dir: dir, files: map[string]*clientFile{}}
}

// Now is the time since the run began.
func (r *Recorder) Now() time.Duration { return time.Since(r.start) }

// Add writes the event down; a zero At becomes now. A file that cannot be written is an error of Close.
func (r *Recorder) Add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.At == 0 {
		e.At = r.Now() // under the lock, so that the order of events is the order of their times
	}
	r.events = append(r.events, e)
	if r.dir == "" || r.err != nil {
		return
	}
	f := r.files[e.Client]
	if f == nil {
		file, err := os.Create(filepath.Join(r.dir, e.Client+".jsonl"))
		if err != nil {
			r.err = err
			return
		}
		w := bufio.NewWriterSize(file, 64<<10)
		f = &clientFile{file, w, json.NewEncoder(w)}
		r.files[e.Client] = f
	}
	r.err = f.e.Encode(&e)
}

// Events returns a copy of what was recorded so far, in order of time.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := append([]Event(nil), r.events...)
	sortByTime(events)
	return events
}

// Close writes the files out.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := []error{r.err}
	for _, f := range r.files {
		errs = append(errs, f.w.Flush(), f.f.Close())
	}
	clear(r.files)
	return errors.Join(errs...)
}

// Read returns the events of all *.jsonl files of a directory, in order of time.
func Read(dir string) ([]Event, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var events []Event
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		events, err = decode(events, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	sortByTime(events)
	return events, nil
}

func decode(events []Event, r io.Reader) ([]Event, error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	for {
		var e Event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return events, nil
		} else if err != nil {
			return events, err
		}
		events = append(events, e)
	}
}

func sortByTime(events []Event) {
	sort.SliceStable(events, func(i, j int) bool { return events[i].At < events[j].At })
}

// String is the event as people read it.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.6fs %s %s", e.At.Seconds(), e.Client, e.Op)
	if e.From != "" {
		fmt.Fprintf(&b, " %s/%d", e.From, e.Seq)
	} else if e.Seq != 0 || e.Op == Publish {
		fmt.Fprintf(&b, " %d", e.Seq)
	}
	for _, f := range []struct{ name, value string }{
		{"topic", e.Topic}, {"channel", e.Channel}, {"node", e.Node}, {"detail", e.Detail},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " %s=%s", f.name, f.value)
		}
	}
	if e.Message != 0 {
		fmt.Fprintf(&b, " message=%016x attempts=%d", e.Message, e.Attempts)
	}
	if e.Conn != 0 {
		fmt.Fprintf(&b, " conn=%d", e.Conn)
	}
	return b.String()
}
