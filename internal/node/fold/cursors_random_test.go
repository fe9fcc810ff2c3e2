package fold

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"penstock/segment"
)

// Whatever entries a log has, in whatever order, the fold of it can be written and read again, takes no more bytes than
// MaxBytes says, and the copy that was read knows the same. A fold that does not decode makes a partition read-only
// after a restart, or keeps its node from starting.
func TestFoldOfAnyLogDecodes(t *testing.T) {
	for seed := range uint64(3000) {
		l := &anyLog{rand: rand.New(rand.NewPCG(seed, 9)), fold: new(Cursors), at: 1}
		for range 3 + l.rand.IntN(25) {
			l.at += 10
			if l.rand.IntN(6) == 0 {
				l.publish()
			} else if err := l.append(l.control()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if why := l.differs(); why != "" {
				t.Fatalf("seed %d: %s; the log is\n%s", seed, why, strings.Join(l.said, "\n"))
			}
		}
	}
}

// anyLog is a log of random batches.
type anyLog struct {
	rand *rand.Rand
	fold *Cursors
	end  segment.MsgID  // of its messages
	at   segment.Offset // of the next batch
	said []string
}

// publish adds a batch of messages, some of them delayed.
func (l *anyLog) publish() {
	first, n := l.end, 1+l.rand.IntN(4)
	l.end += segment.MsgID(n)
	l.fold.Publish(first, uint32(n))
	var ds []DeferredMessage
	for m := first; m < l.end; m++ {
		if l.rand.IntN(2) == 0 {
			ds = append(ds, DeferredMessage{ID: m, DueMs: int64(l.rand.IntN(100)), At: l.at})
		}
	}
	l.fold.PublishDeferred(ds)
	l.said = append(l.said, fmt.Sprint(n, " messages, delayed: ", ds))
}

// append adds a batch with a control entry.
func (l *anyLog) append(ct Control) error {
	l.said = append(l.said, fmt.Sprintf("%+v", ct))
	return l.fold.ApplyAt(&ct, l.end, l.at)
}

// control returns a control entry as an engine could append it.
func (l *anyLog) control() Control {
	ct := Control{Channel: string(rune('a' + l.rand.IntN(3)))}
	switch ct.Kind = ControlKind(1 + l.rand.IntN(int(DeferredCarried))); ct.Kind {
	case ChannelCreated:
		if ct.ID = l.fold.StartFor(l.end); l.rand.IntN(3) == 0 {
			ct.ID = l.fold.StartAt(segment.MsgID(l.rand.IntN(int(l.end)+1)), l.end)
		}
	case Confirmed, DeadLetterMoved:
		for _, m := range l.some() {
			if n := len(ct.Ranges); n > 0 && ct.Ranges[n-1].To == m {
				ct.Ranges[n-1].To++
			} else {
				ct.Ranges = append(ct.Ranges, IDRange{m, m + 1})
			}
		}
	case Deferred:
		for _, m := range l.some() {
			ct.Deferrals = append(ct.Deferrals, Deferral{ID: m, DueMs: 5, Attempts: 1})
		}
	case ChannelReset:
		ct.ID = segment.MsgID(l.rand.IntN(int(l.end) + 1))
	case TopicPaused:
		if ct.Flag, ct.ID = l.rand.IntN(2) == 0, l.end; ct.Flag && l.fold.TopicPaused {
			ct.ID = l.fold.HeldFrom
		}
	case TopicEmptied:
		ct.ID = l.end
	case ChannelConfigured:
		ct.Settings = &ChannelSettings{Version: 1 + l.rand.Uint64N(4)}
	case DeadLettered:
		for _, m := range l.some() {
			ct.Dead = append(ct.Dead, DeadMessage{ID: m, Attempts: 2})
		}
	case DeferredCarried:
		for _, m := range l.some() {
			ct.Carried = append(ct.Carried, CarriedMessage{ID: m, Record: []byte{1, 0}})
		}
	case Checkpoint:
		ct.Cursors = l.fold.Clone()
	default:
		ct.Flag = l.rand.IntN(2) == 0
	}
	return ct
}

// some returns some of the messages, in order.
func (l *anyLog) some() (ids []segment.MsgID) {
	for m := range l.end {
		if l.rand.IntN(3) == 0 {
			ids = append(ids, m)
		}
	}
	return ids
}

// differs writes the fold and reads it again, and says what is wrong; "": nothing.
func (l *anyLog) differs() string {
	p := l.fold.Append(nil)
	if most := l.fold.MaxBytes(l.at + 10); int64(len(p)) > most {
		return fmt.Sprintf("it takes %d bytes, at most %d were foretold", len(p), most)
	}
	back, rest, err := DecodeCursors(p)
	if err != nil || len(rest) != 0 {
		return fmt.Sprintf("it does not decode: %v, %d bytes are left", err, len(rest))
	}
	from, carries := l.fold.CarriedFrom(0)
	backFrom, backCarries := back.CarriedFrom(0)
	if !bytes.Equal(back.Append(nil), p) || back.text() != l.fold.text() || back.End() != l.fold.End() ||
		back.Needed(0, l.end) != l.fold.Needed(0, l.end) || from != backFrom || carries != backCarries {
		return fmt.Sprintf("it is\n %s, and decodes to\n %s", l.fold.text(), back.text())
	}
	return ""
}
