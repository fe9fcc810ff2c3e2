package offline

import (
	"fmt"
	"strings"

	"penstock/internal/node/fold"
	"penstock/segment"
)

var controlNames = map[fold.ControlKind]string{
	fold.ChannelCreated: "channel created", fold.ChannelDeleted: "channel deleted", fold.Confirmed: "confirmed",
	fold.Deferred: "deferred", fold.ChannelPaused: "channel paused", fold.ChannelSkipped: "channel skipped",
	fold.ChannelReset: "channel reset", fold.TopicPaused: "topic paused", fold.TopicEmptied: "topic emptied",
	fold.EpochStart: "epoch start", fold.Checkpoint: "checkpoint", fold.ChannelConfigured: "channel configured",
	fold.DeadLettered: "dead letters", fold.DeadLetterMoved: "dead letters moved",
	fold.DeferredCarried: "deferred carried", fold.ProducerOpened: "producer opened",
	fold.ProducerTaken: "producer taken", fold.ProducerRemoved: "producer removed",
}

// controlLine is one entry of a control batch; only what its kind uses is set.
type controlLine struct {
	Entry     string                `json:"entry"`
	Channel   string                `json:"channel,omitempty"`
	ID        *segment.MsgID        `json:"id,omitempty"`
	Flag      *bool                 `json:"flag,omitempty"`
	Epoch     segment.Epoch         `json:"epoch,omitempty"`
	Ranges    []fold.IDRange        `json:"ranges,omitempty"` // half-open
	Deferrals []fold.Deferral       `json:"deferrals,omitempty"`
	Channels  *int                  `json:"channels,omitempty"` // of a checkpoint
	Settings  *fold.ChannelSettings `json:"settings,omitempty"`
	Dead      []fold.DeadMessage    `json:"dead,omitempty"`
	Carried   []carriedLine         `json:"carried,omitempty"`
	Producer  *producerLine         `json:"producer,omitempty"`
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

func describeControl(c *fold.Control) controlLine {
	l := controlLine{Entry: controlNames[c.Kind], Channel: c.Channel}
	if l.Entry == "" {
		l.Entry = fmt.Sprintf("kind %d", c.Kind)
	}
	switch c.Kind {
	case fold.ChannelCreated, fold.ChannelReset, fold.TopicEmptied:
		l.ID = &c.ID
	case fold.TopicPaused:
		l.ID, l.Flag = &c.ID, &c.Flag
	case fold.ChannelPaused, fold.ChannelSkipped:
		l.Flag = &c.Flag
	case fold.Confirmed:
		l.Ranges = c.Ranges
	case fold.Deferred:
		l.Deferrals = c.Deferrals
	case fold.EpochStart:
		l.Epoch = c.Epoch
	case fold.Checkpoint:
		n := c.Cursors.Len()
		l.Channels = &n
	case fold.ChannelConfigured:
		l.Settings = c.Settings
	case fold.DeadLettered:
		l.Dead = c.Dead
	case fold.DeadLetterMoved:
		l.Ranges = c.Ranges
	case fold.DeferredCarried:
		for _, m := range c.Carried {
			l.Carried = append(l.Carried, carriedLine{m.ID, m.DueMs, len(m.Record)})
		}
	case fold.ProducerOpened, fold.ProducerTaken, fold.ProducerRemoved:
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
