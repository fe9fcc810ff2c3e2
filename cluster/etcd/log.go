package etcd

import (
	"context"
	"log/slog"
	"strings"
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
func serverLogger(log *slog.Logger, closing func() bool) *zap.Logger {
	c := &core{log: log, level: func(e zapcore.Entry) slog.Level {
		switch {
		case e.Level < zapcore.WarnLevel || harmless[e.Message] || e.Level < zapcore.DPanicLevel && closing():
			return slog.LevelDebug
		case e.Level < zapcore.ErrorLevel:
			return slog.LevelWarn
		}
		return slog.LevelError
	}}
	return zap.New(zapcore.NewSamplerWithOptions(c, time.Minute, maxRepeats, 0))
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
	if forgot(&e) {
		c.log.Error("this node's embedded etcd ends the process: its directory is an older state, such as a snapshot or a " +
			"restored volume, and lacks what the other members know that it stored. Empty the directory of the etcd (etcd in " +
			"the data directory, or etcd-data-path) and start the node again while the other members run: it is then added anew")
	}
	return nil
}

// forgot says whether a member panics because its log ends before what it has promised to another member. The leader
// notices it with the first heartbeat, if it has known the member since before.
func forgot(e *zapcore.Entry) bool {
	return e.Level >= zapcore.DPanicLevel && strings.HasPrefix(e.Message, "tocommit(")
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
