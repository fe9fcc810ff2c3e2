package topic

import (
	"context"
	"errors"
	"fmt"

	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/names"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
	"penstock/segment"
)

// origin says how a channel that is created begins. The zero value is a channel about which nobody says anything: it
// starts where channels do otherwise, with the default settings.
type origin struct {
	from     *wire.SeekTo
	settings *fold.ChannelSettings
}

func originOf(op *wire.Operation) origin { return origin{op.Seek, op.Settings} }

// Fork creates a channel of the same topic with the settings of c, and returns when that is on stable storage in every
// partition. It starts at at: at a time, at an id, at the oldest message that is kept or behind the newest one. In
// partitions that an id is not in, and everywhere if at is nil, it starts where c stands now, at its oldest message
// that is not confirmed; what c has confirmed behind that message is delivered again. Whether c is paused, or skips
// its messages, is not copied.
//
// Fork returns ErrChannelExists if there is a channel of that name, ErrNoChannel if there is no c, ErrSeek for a place
// that is none of these and for an ephemeral channel, which has no place in the log, ErrFromLevel, and the errors of
// CreateChannelFrom. After any other error the channel may exist in some partitions. If somebody else creates a channel
// of that name at the same time, the request that comes first to a partition decides where the channel begins there.
func (c *Channel) Fork(ctx context.Context, name string, at *wire.SeekTo) (*Channel, error) {
	from := wire.SeekTo{Kind: wire.SeekChannel}
	if at != nil {
		from = *at
	}
	switch {
	case from.Kind == wire.SeekChannel && at != nil, c.ephemeral:
		return nil, fmt.Errorf("%w (a fork starts where a channel stands that is not ephemeral, or at the beginning, the "+
			"end, an id or a time)", errs.ErrSeek)
	case from.Kind != wire.SeekChannel:
		if err := c.t.checkStart(name, from); err != nil {
			return nil, err
		}
	case names.Ephemeral(name):
		return nil, fmt.Errorf("%w (an ephemeral channel starts at the end)", errs.ErrSeek)
	case !c.t.mayStartAnywhere():
		return nil, errs.ErrFromLevel
	}
	if !names.ValidChannel(name) {
		return nil, errs.ErrChannelName
	}
	settings, err := c.ReadSettings(ctx)
	if err != nil {
		return nil, err
	}
	_, err = c.t.ChannelElsewhere(name).ReadSettings(ctx)
	switch {
	case err == nil:
		return nil, errs.ErrChannelExists
	case !errors.Is(err, errs.ErrNoChannel):
		return nil, err
	}
	from.Channel = c.name
	o := origin{from: &from}
	if settings.Version > 0 {
		settings.Version = 1
		o.settings = &settings
	}
	return c.t.createChannel(ctx, name, o)
}

// creation returns the entries that create the channel in a partition.
func (c *Channel) creation(pt *partition.Partition, o origin) ([]fold.Control, error) {
	start, err := startIn(pt, o.from)
	if err != nil {
		return nil, err
	}
	all := []fold.Control{{Kind: fold.ChannelCreated, Channel: c.name, Start: start}}
	if o.settings != nil {
		all = append(all, fold.Control{Kind: fold.ChannelConfigured, Channel: c.name, Settings: o.settings})
	}
	return all, nil
}

// startIn returns the id at which a channel starts in a partition; nil: where channels start if nobody says anything.
func startIn(pt *partition.Partition, from *wire.SeekTo) (*segment.MsgID, error) {
	switch {
	case from == nil:
		return nil, nil
	case from.Kind == wire.SeekChannel, from.Kind == wire.SeekID && from.ID.Partition() != pt.Number():
		if from.Channel == "" {
			return nil, nil
		}
		var id *segment.MsgID
		pt.ReadChannels(func(cur *fold.Cursor) {
			if cur.Name == from.Channel {
				stands := cur.Confirmed
				id = &stands
			}
		})
		if id == nil {
			return nil, errs.ErrNoChannel
		}
		return id, nil
	}
	id, err := channel.Place(pt.Log(), from, segment.MaxMsgID)
	return &id, err
}
