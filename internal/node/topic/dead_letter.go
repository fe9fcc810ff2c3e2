package topic

import (
	"context"
	"errors"
	"slices"

	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
)

// redriveChannel is the channel of a dead-letter topic from which Redrive sends messages back. deadLetterTopic creates
// it together with the topic, with a filter that wants only dead letters. The channel confirms a dead letter when it
// has been sent back; until then the dead letter is kept. What others publish to the topic it does not keep: see
// channel.Sweep. A channel of that name with other settings is somebody else's, and keeps everything.
const redriveChannel = RedriveChannel

// RedriveChannel is the name of redriveChannel, for those who must not delete it.
const RedriveChannel = "redrive"

// maxRedriveCount bounds the dead letters that Redrive sends back in one round.
const maxRedriveCount = 64

// deadLetterTopic returns the dead-letter topic of that name. It creates the topic and its channel redriveChannel if
// they do not exist, and waits until the channel is committed. The topic counts for the token for which that of the
// dead letters counts (madeBy).
func (s *Shared) deadLetterTopic(ctx context.Context, name, madeBy string) (*Topic, error) {
	t, err := s.Catalog.MakeTopic(ctx, name, madeBy)
	if err != nil {
		return nil, err
	}
	if t.hasRedrive.Load() && slices.Contains(t.ChannelNames(), redriveChannel) {
		return t, nil
	}
	// The channel that this node knows may not be committed yet, and a failover could undo its creation.
	store, err := t.CreateChannel(ctx, redriveChannel)
	if err != nil {
		return t, err
	}
	now, err := store.ReadSettings(ctx)
	if err == nil && now.Version == 0 {
		now.Filter = channel.DeadLettersOnly()
		if _, err = store.Configure(ctx, now); errors.Is(err, errs.ErrVersion) {
			err = nil // another node was first
		}
	}
	if err == nil {
		t.hasRedrive.Store(true)
	}
	return t, err
}
