package trace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/internal/node/logread"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Limits of a trace.
const (
	MaxBytes  = 1 << 30         // of the log that one trace reads
	MaxTime   = 2 * time.Second // for which it reads
	MaxEvents = 1000            // that it lists
	stepBytes = 1 << 20         // read at once, and pinned while they are looked at
)

// ErrNoMessage says that no message has this id.
var ErrNoMessage = errors.New("engine: no message was ever published with this id")

// Partition is the trace's view of the message's partition.
type Partition interface {
	Number() uint32
	Log() *segment.Log
	// WhyUnread returns why the fold is not known, or nil if it is known.
	WhyUnread() error
	// ReadFold calls f with the fold of the log, which does not change meanwhile.
	ReadFold(f func(*fold.Cursors))
	// CommittedMark returns the end of the committed part of the log.
	CommittedMark() segment.Position
}

// Env is what a trace gets from the node, and the name of the topic.
type Env struct {
	Topic string
	Log   *slog.Logger
	Mono  func() time.Duration // the time since some moment; see platform.Host
}

// tracing reads what a log says about one message. No lock is held while it reads.
type tracing struct {
	Env
	pt     Partition
	t      fold.Tracer
	out    wire.Trace
	fold   []fold.ChannelFold
	at     segment.Offset   // where to read on
	end    segment.Offset   // end of the log that fold describes
	closed segment.Position // end of what was committed when the trace ended
	limits Limits
}

// Limits bounds a trace; zero: the limits above.
type Limits struct {
	Bytes  int64
	Events int
	Time   time.Duration
}

// Message tells the life of a message from the log, which it reads from the message on. It reads without a lock, in
// steps of stepBytes. It takes Replica.mu twice, to look at the fold and at the committed mark. Message returns
// ErrNoMessage for an id that no message has.
func Message(ctx context.Context, env Env, pt Partition, id segment.MsgID, limits Limits) (*wire.Trace, error) {
	if err := pt.WhyUnread(); err != nil {
		return nil, err
	}
	tr := &tracing{Env: env, pt: pt, t: fold.Tracer{ID: id}, limits: limits.orDefault()}
	tr.out = wire.Trace{ID: batch.MakeID(pt.Number(), id).String(), Partition: pt.Number(), Number: id}
	carriedAt, known := tr.look()
	if !known {
		return nil, ErrNoMessage
	}
	if err := tr.readMessage(carriedAt); err != nil {
		return nil, err
	}
	if err := tr.read(ctx); err != nil {
		return nil, err
	}
	tr.closed = pt.CommittedMark()
	tr.finish()
	return &tr.out, nil
}

func (l Limits) orDefault() Limits {
	if l.Bytes <= 0 {
		l.Bytes = MaxBytes
	}
	if l.Events <= 0 {
		l.Events = MaxEvents
	}
	if l.Time <= 0 {
		l.Time = MaxTime
	}
	return l
}

// look notes what the fold says, and where the log ends. It returns the offset of the batch that carries a copy of the
// message (0: none), and whether the log ever had the message. It takes Replica.mu.
func (tr *tracing) look() (carriedAt segment.Offset, known bool) {
	tr.pt.ReadFold(func(now *fold.Cursors) {
		start := logread.Border(tr.pt.Log())
		tr.at, tr.out.LogFrom = start.At, start.ID
		if list := now.CarriedBelow(nil, tr.t.ID, start, 1); len(list) == 1 && list[0].ID == tr.t.ID {
			carriedAt = list[0].At
		}
		tr.fold = now.Trace(tr.t.ID)
		tr.end, _, _ = tr.pt.Log().End()
		known = tr.t.ID < now.End()
	})
	return carriedAt, known
}

// readMessage reads the message where it was published, or else the copy of it, and decides from where on to read. If
// retention has removed both, it reads all that is left of the log.
func (tr *tracing) readMessage(carriedAt segment.Offset) error {
	at, _, err := tr.pt.Log().Seek(tr.t.ID)
	switch {
	case err == nil:
		tr.at = at
	case errors.Is(err, segment.ErrBelowStart) && carriedAt != 0:
		at, err = carriedAt, nil
	}
	if err == nil {
		err = tr.store(at)
	}
	switch {
	case err == nil:
	case errors.Is(err, segment.ErrBelowStart): // removed before, or just now
		tr.at, _, _ = tr.pt.Log().Start()
	case errors.Is(err, segment.ErrClosed):
		return err
	default: // what lies behind the damage may still say something
		tr.Log.Warn("a message cannot be read that is to be traced", "topic", tr.Topic,
			"partition", tr.pt.Number(), "error", err)
		tr.out.Cut = fold.CutDamage
	}
	return nil
}

// store reads the batch at an offset and notes what it says about the message.
func (tr *tracing) store(at segment.Offset) error {
	var v segment.View
	defer v.Release()
	if err := tr.pt.Log().View(&v, at, 1); err != nil {
		return err
	}
	var it segment.BatchIter
	it.Reset(v.Bytes())
	h, _, ok := it.Next()
	if !ok {
		return it.Err()
	}
	m, err := logread.RecordIn(v.Bytes(), tr.t.ID)
	if err != nil {
		return err
	}
	var records segment.RecordIter
	records.Reset(&segment.Header{Count: 1, Created: m.CreatedNs}, m.Record)
	r := records.NextRef()
	if r == nil {
		return errors.Join(segment.ErrInvalid, records.Err())
	}
	s := &wire.TraceStored{
		At: time.Unix(0, h.Appended).UTC(), Published: time.Unix(0, m.CreatedNs+r.TimeDelta*1000).UTC(), Due: msTime(m.DueMs),
		Offset: at, Batch: h.Position, Epoch: h.Epoch, BodyBytes: len(r.Body), Headers: len(r.Headers), Carried: h.Control(),
		Index: uint32(max(tr.t.ID, h.FirstID) - h.FirstID), InBatch: h.Count,
	}
	tr.out.Stored, tr.t.Read = s, true
	for _, kv := range r.Headers { // they lie in the copy that RecordIn made
		tr.t.Headers = append(tr.t.Headers, kv)
		if string(kv.Key) == message.OnlyChannelHeader {
			tr.t.Only = string(kv.Value)
		}
	}
	return nil
}

func msTime(ms int64) (t time.Time) {
	if ms != 0 {
		t = time.UnixMilli(ms).UTC()
	}
	return t
}

// read reads the log until it ends as fold describes it, until the message is settled, or until a limit is reached.
func (tr *tracing) read(ctx context.Context) error {
	until := tr.Mono() + tr.limits.Time
	for tr.at < tr.end {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case tr.out.ReadBytes >= tr.limits.Bytes:
			tr.out.Cut = fold.CutBytes
		case tr.Mono() >= until:
			tr.out.Cut = fold.CutTime
		case len(tr.t.Events) >= tr.limits.Events:
			tr.out.Cut = fold.CutEvents
		}
		if tr.out.Cut != "" {
			return nil
		}
		before := len(tr.t.Events)
		if err := tr.step(); err != nil {
			return err
		}
		if len(tr.t.Events) > before && tr.t.Settled(tr.fold) {
			tr.out.Settled = true
			return nil
		}
	}
	return nil
}

// step reads one run of batches. If retention has removed what comes next, it goes on where the log begins now. Damage
// ends the trace, and what was found stays.
func (tr *tracing) step() error {
	var v segment.View
	err := tr.pt.Log().View(&v, tr.at, stepBytes)
	defer v.Release()
	switch {
	case errors.Is(err, segment.ErrBelowStart):
		tr.at, _, _ = tr.pt.Log().Start()
		return nil
	case err != nil:
		tr.out.Cut = fold.CutDamage
		return nil
	}
	var it segment.BatchIter
	it.Reset(v.Bytes())
	for h, body, ok := it.Next(); ok && tr.at < tr.end; h, body, ok = it.Next() {
		if tr.out.LogSince.IsZero() {
			tr.out.LogSince = time.Unix(0, h.Appended).UTC()
		}
		if h.Control() {
			at := fold.TracePlace{AppendedNs: h.Appended, Offset: tr.at, Position: h.Position, Epoch: h.Epoch}
			err := fold.DecodeControls(body, func(ct *fold.Control) error {
				tr.t.Apply(ct, at)
				return nil
			})
			if err != nil {
				return fmt.Errorf("engine: partition %d, offset %d: %w", tr.pt.Number(), tr.at, err)
			}
		}
		tr.at += segment.Offset(h.Size())
		tr.out.ReadBytes += int64(h.Size())
	}
	return it.Err()
}

// finish fills in the events, and what became of the message in each channel.
func (tr *tracing) finish() {
	channels := tr.t.Finish(tr.fold, tr.out.Stored == nil)
	for i := range tr.t.Events[:min(len(tr.t.Events), tr.limits.Events)] {
		tr.out.Events = append(tr.out.Events, tr.event(&tr.t.Events[i]))
	}
	behind := tr.out.Stored != nil && !tr.out.Stored.Carried // all that was written about it lies behind it
	for i := range channels {
		c := &channels[i]
		o := wire.TraceChannel{Channel: c.Channel, State: c.State, Due: msTime(c.DueMs)}
		if c.Counted {
			o.Attempts = &c.Attempts
		}
		if c.By != nil {
			o.At, o.Epoch = time.Unix(0, c.By.AppendedNs).UTC(), c.By.Epoch
		}
		o.OlderThanLog = c.By == nil && !behind && slices.Contains(madeByEntry, c.State)
		if c.State == fold.StateDead || c.State == fold.StateDeadWaiting {
			o.DeadLetterTopic = c.Settings.DeadLetter
			if o.DeadLetterTopic == "" {
				o.DeadLetterTopic = tr.Topic + fold.DeadLetterSuffix
			}
		}
		if c.DeadStored != nil {
			o.DeadLetterAt = time.Unix(0, c.DeadStored.AppendedNs).UTC()
		}
		tr.out.Channels = append(tr.out.Channels, o)
	}
}

// madeByEntry are the states into which an entry of the log brings a message.
var madeByEntry = []fold.TraceState{
	fold.StateConfirmed, fold.StateDead, fold.StateDeadWaiting, fold.StateDeferred,
}

func (tr *tracing) event(e *fold.TraceEvent) wire.TraceEvent {
	o := wire.TraceEvent{
		At: time.Unix(0, e.AppendedNs).UTC(), Kind: e.Kind, Channel: e.Channel, Due: msTime(e.DueMs), Offset: e.Offset,
		Batch: e.Position, Epoch: e.Epoch, Open: e.Position >= tr.closed,
	}
	if e.Kind == fold.TraceDead || e.Kind == fold.TraceDeferred {
		o.Attempts = &e.Attempts
	}
	return o
}
