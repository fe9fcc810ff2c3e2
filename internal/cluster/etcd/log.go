package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// core passes the log lines of etcd, which logs to zap, on to slog. A fatal line still ends the process after it is
// written: etcd logs one when its disk fails, and a member that went on could break its promises.
type core struct {
	log   *slog.Logger
	level func(zapcore.Entry) slog.Level
	attrs []slog.Attr
}

// harmless has messages of etcd about conditions that are by design, or that come with every first start.
var harmless = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
}

// maxRepeats bounds how often one message is logged per minute: on a busy disk etcd complains many times a second.
const maxRepeats = 3

// serverLogger logs a member's warnings and errors. While the member is being closed, everything below a panic is
// logged at debug level.
//
// last ends the process after a panic or a fatal line; nil: as zap does.
func serverLogger(log *slog.Logger, closing func() bool, last zapcore.CheckWriteHook) *zap.Logger {
	c := &core{log: log, level: func(e zapcore.Entry) slog.Level {
		switch {
		case e.Level < zapcore.WarnLevel || harmless[e.Message] || e.Level < zapcore.DPanicLevel && closing():
			return slog.LevelDebug
		case e.Level < zapcore.ErrorLevel:
			return slog.LevelWarn
		}
		return slog.LevelError
	}}
	sampled := zapcore.NewSamplerWithOptions(c, time.Minute, maxRepeats, 0)
	if last == nil {
		return zap.New(sampled)
	}
	return zap.New(sampled, zap.WithPanicHook(last), zap.WithFatalHook(last))
}

// lastHook is in place of a panic of etcd, or of an exit without a word. If a lack of descriptors or of space is the
// cause, or a disk that fails, it ends the goroutine that cannot go on, and tells serve, which ends etcd: the node's
// messages do not depend on this member. Otherwise its files are wrong, and the process ends.
type lastHook struct {
	o      *MemberOptions
	broken chan<- error
}

// OnWrite implements zapcore.CheckWriteHook. It runs on the goroutine that would panic, after the line was logged.
func (h lastHook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	var cause error
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			cause = err
		}
		if f.Key == "panic" { // etcd has recovered from it, and logs that it goes on panicking
			cause = errors.New(attrs([]zapcore.Field{f})[0].Value.String())
		}
	}
	stack := string(debug.Stack())
	h.o.Log.Debug("the embedded etcd cannot go on", "stack", stack)
	err := h.o.ended(e.Message, cause, stack)
	switch {
	case isShortage(err) || isDiskFault(err):
		select {
		case h.broken <- err:
		default: // another goroutine has said so, too
		}
		runtime.Goexit()
	case h.o.Fatal != nil:
		h.o.Fatal(err)
		panic("BUG: MemberOptions.Fatal returned: " + e.Message)
	case e.Level == zapcore.FatalLevel:
		zapcore.WriteThenFatal.OnWrite(e, fields)
	}
	zapcore.WriteThenPanic.OnWrite(e, fields)
}

// shortages are what passes without a change of the member's files.
var shortages = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EAGAIN, syscall.EROFS,
}

func isShortage(err error) bool {
	return slices.ContainsFunc(shortages, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

func isDiskFault(err error) bool { return errors.Is(err, syscall.EIO) }

// errnoOf returns what of the system's errors a text has that lost them; nil: none.
func errnoOf(text string) error {
	for _, e := range append(slices.Clone(shortages), syscall.EIO) {
		if strings.Contains(text, e.Error()) {
			return e
		}
	}
	return nil
}

// ended says in one sentence why etcd cannot go on. stack is of the goroutine that found it.
func (o *MemberOptions) ended(message string, cause error, stack string) error {
	if cause != nil && !isShortage(cause) && !isDiskFault(cause) {
		if e := errnoOf(cause.Error()); e != nil {
			cause = fmt.Errorf("%w (%w)", cause, e)
		}
	}
	switch {
	case isDiskFault(cause):
		return o.stops(message, cause, "restart the node when the disk works")
	case isShortage(cause):
		return o.stops(message, cause, startsAgain)
	case cause != nil:
		message += ": " + cause.Error()
	}
	return o.unusable(o.readBy(stack), message)
}

// errStops is of a member that stops although its files are not damaged.
var errStops = errors.New("etcd: the embedded member of this node has stopped")

const startsAgain = "it starts again by itself when that is cured"

func (o *MemberOptions) stops(message string, cause error, what string) error {
	return fmt.Errorf("%w: it cannot use its files in %s (%s: %w). This node goes on as a client of the other members, "+
		"and its messages are unharmed; %s", errStops, o.Dir, message, cause, what)
}

// lacks returns the fault because of which etcd could not start with err; nil: the reason is another one.
func (m *Member) lacks(err error) error {
	const doing = "it could not start"
	switch lack := shortage(m.o.Dir); {
	case errors.Is(err, errStops):
		return err
	case isShortage(err):
		return m.o.stops(doing, err, startsAgain)
	case isShortage(lack):
		return m.o.stops(doing, lack, startsAgain)
	}
	return nil
}

// readBy returns the file or the folder that a goroutine of etcd was using.
func (o *MemberOptions) readBy(stack string) string {
	switch {
	case strings.Contains(stack, "go.etcd.io/bbolt."):
		return filepath.Join(o.Dir, memberDir, "snap", "db")
	case strings.Contains(stack, "/storage/wal."):
		return filepath.Join(o.Dir, memberDir, "wal")
	}
	return o.Dir
}

// unusable is the error of a member that finds its own files wrong. file is one of them, or their directory.
func (o *MemberOptions) unusable(file, message string) error {
	return fmt.Errorf("%w: %s does not fit what the member promised, or is damaged (%s): it may be an older state of "+
		"itself. The messages are unharmed. %s", ErrDirectory, file, message, o.remedy())
}

// damaged is the error of a member whose files were found damaged before it started.
func (o *MemberOptions) damaged(found error) error {
	return fmt.Errorf("%w: %w. The messages are unharmed. %s", ErrDirectory, found, o.remedy())
}

func (o *MemberOptions) remedy() string {
	if len(o.Voters) == 1 {
		return "This is the only member, so the metadata have no other copy: put the directory back as it was, or copy the " +
			"cluster.json of the newest backup into the data directory and run penstock rebuild-cluster"
	}
	return fmt.Sprintf("Run `%s`, which sets the files aside, and start the node again while a majority of the other "+
		"nodes in cluster-peers runs: the member is then added anew", o.Anew)
}

// clientLogger logs everything at debug level: the client warns of every failed attempt, and each failure becomes an
// error of a call anyway.
func clientLogger(log *slog.Logger) *zap.Logger {
	return zap.New(&core{log: log, level: func(zapcore.Entry) slog.Level { return slog.LevelDebug }})
}

// Enabled is called before there is an entry. etcd's own debug lines are never wanted.
func (c *core) Enabled(l zapcore.Level) bool { return l > zapcore.DebugLevel }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	child := *c
	child.attrs = append(child.attrs[:len(child.attrs):len(child.attrs)], attrs(fields)...)
	return &child
}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && c.log.Enabled(context.Background(), c.level(e)) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	all := append(c.attrs[:len(c.attrs):len(c.attrs)], attrs(fields)...)
	c.log.LogAttrs(context.Background(), c.level(e), "etcd: "+e.Message, all...)
	return nil
}

func (c *core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	m := zapcore.NewMapObjectEncoder()
	out := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		f.AddTo(m)
		if v, ok := m.Fields[f.Key]; ok {
			out = append(out, slog.Any(f.Key, v))
		}
	}
	return out
}
