package faultaio

import (
	"path"
)

// Kind is a kind of operation.
type Kind uint8

// The kinds. Operations of every kind except KindRead are numbered from 0 in the order in which they start.
const (
	KindAny Kind = iota // in rules: every kind except KindRead
	KindCreate
	KindWrite     // File.WriteAt
	KindWriteSync // File.WriteSyncAt and operations of a queue
	KindSync
	KindRename
	KindRemove // also each entry that RemoveAll removes
	KindMkdir
	KindSyncDir
	KindRead // File.ReadAt, Disk.ReadFile, Mapping.Populate
)

func (k Kind) String() string {
	names := [...]string{"any", "create", "write", "writesync", "sync", "rename", "remove", "mkdir", "syncdir", "read"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// Rule makes operations fail or linger. The first rule that matches an operation decides its fate.
type Rule struct {
	Kind  Kind
	Name  string // pattern of path.Match for the name under which the file was opened; "" matches every name
	After int    // number of matching operations that pass first
	Count int    // number of operations that are hit then; 0 means 1, negative means all

	// Err is what the operation returns. A failed KindWrite or KindWriteSync leaves bytes that may or may not survive.
	// A failed KindSync dooms the writes that it should have flushed. With syscall.ENOSPC nothing is written.
	Err error
	// ShortBytes makes a write take only this many bytes and fail with io.ErrShortWrite, or with Err if that is
	// syscall.ENOSPC.
	ShortBytes int
	// Waits keeps a queue's operation in flight for this many more calls of Wait.
	Waits int
	// Hold keeps the operation from finishing until ReleaseHeld, like a disk that hangs.
	Hold bool
}

type rule struct {
	Rule
	seen int
}

// Op is one entry of the log of operations.
type Op struct {
	Kind   Kind
	Name   string
	Offset int64
	Bytes  int
}

// Inject adds a rule behind the existing ones.
func (d *Disk) Inject(r Rule) {
	if _, err := path.Match(r.Name, ""); err != nil {
		panic("BUG: faultaio.Inject: " + err.Error())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = append(d.rules, &rule{Rule: r})
}

// ClearRules removes all rules. Operations that are held stay held until ReleaseHeld.
func (d *Disk) ClearRules() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = nil
}

// ReleaseHeld lets the operations finish that are held now. Rules with Hold continue to hold later operations.
func (d *Disk) ReleaseHeld() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.releases++
	d.changed.Broadcast()
}

// Blocked is how many operations wait now because a rule holds them, not counting those of queues.
func (d *Disk) Blocked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.blocked
}

// Ops is the number of operations started so far, not counting reads.
func (d *Disk) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops
}

// Log returns the operations so far, without reads; operation i is at index i. It is empty unless Options.Log is set.
func (d *Disk) Log() []Op {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Op(nil), d.log...)
}

// CrashAt cuts the power during operation number op. The operation's volatile effect happens (a crash may keep or lose
// it), its durable effect does not. It returns ErrCrashed, and so does every later operation. Negative: never.
func (d *Disk) CrashAt(op int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashAt = op
}

// Crashed reports whether CrashAt has struck.
func (d *Disk) Crashed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.crashed
}

// verdict is what happens to one operation.
type verdict struct {
	Rule
	hit   bool
	crash bool // the power fails during this operation
}

// start numbers and logs an operation and asks the rules. d.mu is held. For a held operation that may block, start
// releases d.mu while it waits (queues hold their operations themselves).
func (d *Disk) start(kind Kind, name string, off int64, n int, mayBlock bool) (verdict, error) {
	if d.closed {
		return verdict{}, pathError(kind.String(), name, errClosed)
	}
	if d.crashed {
		return verdict{}, ErrCrashed
	}
	var v verdict
	if kind != KindRead {
		if d.keepLog {
			d.log = append(d.log, Op{Kind: kind, Name: name, Offset: off, Bytes: n})
		}
		if d.ops == d.crashAt {
			d.crashed, v.crash = true, true
			d.changed.Broadcast()
		}
		d.ops++
	}
	if v.crash {
		return v, nil
	}
	if r := d.match(kind, name); r != nil {
		v.Rule, v.hit = r.Rule, true
	}
	if v.Hold && mayBlock {
		d.blocked++
		defer func() { d.blocked-- }()
		for released := d.releases; d.releases == released && !d.crashed; {
			d.changed.Wait()
		}
		if d.crashed {
			v.crash = true
			if kind == KindRead {
				return v, ErrCrashed
			}
		}
	}
	return v, nil
}

func (d *Disk) match(kind Kind, name string) *rule {
	for _, r := range d.rules {
		if r.Kind != kind && (r.Kind != KindAny || kind == KindRead) {
			continue
		}
		if ok, _ := path.Match(r.Name, name); r.Name != "" && !ok {
			continue
		}
		r.seen++
		if hits := r.seen - r.After; hits > 0 && (r.Count < 0 || hits <= max(r.Count, 1)) {
			return r
		}
	}
	return nil
}
