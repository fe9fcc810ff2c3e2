package offline

import (
	"fmt"
	"strings"

	"penstock/internal/node/machine"
	"penstock/segment"
)

var controlNames = map[machine.ControlKind]string{
	machine.ChannelCreated: "channel created", machine.ChannelDeleted: "channel deleted", machine.Confirmed: "confirmed",
	machine.Deferred: "deferred", machine.ChannelPaused: "channel paused", machine.ChannelSkipped: "channel skipped",
	machine.ChannelReset: "channel reset", machine.TopicPaused: "topic paused", machine.TopicEmptied: "topic emptied",
	machine.EpochStart: "epoch start", machine.Checkpoint: "checkpoint", machine.ChannelConfigured: "channel configured",
	machine.DeadLettered: "dead letters", machine.DeadLetterMoved: "dead letters moved",
	machine.DeferredCarried: "deferred carried", machine.ProducerOpened: "producer opened",
	machine.ProducerTaken: "producer taken", machine.ProducerRemoved: "producer removed",
}

// controlLine is one entry of a control batch; only what its kind uses is set.
type controlLine struct {
	Entry     string                   `json:"entry"`
	Channel   string                   `json:"channel,omitempty"`
	ID        *segment.MsgID           `json:"id,omitempty"`
	Flag      *bool                    `json:"flag,omitempty"`
	Epoch     segment.Epoch            `json:"epoch,omitempty"`
	Ranges    []machine.IDRange        `json:"ranges,omitempty"` // half-open
	Deferrals []machine.Deferral       `json:"deferrals,omitempty"`
	Channels  *int                     `json:"channels,omitempty"` // of a checkpoint
	Settings  *machine.ChannelSettings `json:"settings,omitempty"`
	Dead      []machine.DeadMessage    `json:"dead,omitempty"`
	Carried   []carriedLine            `json:"carried,omitempty"`
	Producer  *producerLine            `json:"producer,omitempty"`
}

// carriedLine is a copied message without its record.
type carriedLine struct {
	ID          segment.MsgID `json:"id"`
	DueMs       int64         `json:"due_ms"`
	RecordBytes int           `json:"record_bytes"`
}

// producerLine is a producer that was opened.
type producerLine struct {
	ID    uint64 `json:"id"`
	Epoch uint32 `json:"epoch"`
	Name  string `json:"name,omitempty"`

	Tenure uint64 `json:"tenure,omitempty"`
}

func describeControl(c *machine.Control) controlLine {
	l := controlLine{Entry: controlNames[c.Kind], Channel: c.Channel}
	if l.Entry == "" {
		l.Entry = fmt.Sprintf("kind %d", c.Kind)
	}
	switch c.Kind {
	case machine.ChannelCreated, machine.ChannelReset, machine.TopicEmptied:
		l.ID = &c.ID
	case machine.TopicPaused:
		l.ID, l.Flag = &c.ID, &c.Flag
	case machine.ChannelPaused, machine.ChannelSkipped:
		l.Flag = &c.Flag
	case machine.Confirmed:
		l.Ranges = c.Ranges
	case machine.Deferred:
		l.Deferrals = c.Deferrals
	case machine.EpochStart:
		l.Epoch = c.Epoch
	case machine.Checkpoint:
		n := c.Cursors.Len()
		l.Channels = &n
	case machine.ChannelConfigured:
		l.Settings = c.Settings
	case machine.DeadLettered:
		l.Dead = c.Dead
	case machine.DeadLetterMoved:
		l.Ranges = c.Ranges
	case machine.DeferredCarried:
		for _, m := range c.Carried {
			l.Carried = append(l.Carried, carriedLine{m.ID, m.DueMs, len(m.Record)})
		}
	case machine.ProducerOpened, machine.ProducerTaken, machine.ProducerRemoved:
		l.Producer = &producerLine{c.Producer.ID, c.Producer.Epoch, c.Producer.Name, c.Producer.Tenure}
	}
	return l
}

func (l *controlLine) text() string {
	var b strings.Builder
	b.WriteString(l.Entry)
	if l.Channel != "" {
		fmt.Fprintf(&b, " %s", l.Channel)
	}
	if l.ID != nil {
		fmt.Fprintf(&b, ", id %d", *l.ID)
	}
	if l.Flag != nil {
		fmt.Fprintf(&b, ": %v", *l.Flag)
	}
	if l.Epoch != 0 {
		fmt.Fprintf(&b, " %d", l.Epoch)
	}
	for _, r := range l.Ranges {
		fmt.Fprintf(&b, " [%d, %d)", r.From, r.To)
	}
	for _, d := range l.Deferrals {
		fmt.Fprintf(&b, " %d until %d ms after %d attempts;", d.ID, d.DueMs, d.Attempts)
	}
	if l.Channels != nil {
		fmt.Fprintf(&b, " of %d channels", *l.Channels)
	}
	if l.Settings != nil {
		fmt.Fprintf(&b, ", version %d", l.Settings.Version)
	}
	for _, d := range l.Dead {
		fmt.Fprintf(&b, " %d after %d attempts;", d.ID, d.Attempts)
	}
	for _, m := range l.Carried {
		fmt.Fprintf(&b, " %d of %d bytes;", m.ID, m.RecordBytes)
	}
	if p := l.Producer; p != nil {
		fmt.Fprintf(&b, " %q, id %d, epoch %d", p.Name, p.ID, p.Epoch)
		if p.Tenure != 0 {
			fmt.Fprintf(&b, ", tenure %d", p.Tenure)
		}
	}
	return b.String()
}
