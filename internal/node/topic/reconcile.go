package topic

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"penstock/internal/node/fold"
	"penstock/replicate/wire"
)

// The logs of a topic's partitions may have different settings of a channel: the node that made a change may have
// crashed before it had told every leader, or a leader had the change in two logs and only one of them was committed
// when it failed. Then the leaders of the partitions follow different settings, and if the leader of partition 0 has
// the older ones, Configure refuses every change, because no caller can name its version. A caller who knew only the
// older ones may also have changed them once more: then two logs have different settings under one version. So every
// leader compares them after a change, and after each change of leaderships, and goes on until it has succeeded.

// reconcileAfter is how long after a change of the settings the leader of partition 0 checks that all leaders have
// them, and how long after an error a leader tries again.
const reconcileAfter = 2 * time.Second

// unreconciled are the channels of a topic whose settings this node has to compare with the other leaders'. Local.mu
// guards it. A crash loses it: the change of leaderships that follows fills it again.
type unreconciled struct {
	names   map[string]bool
	running bool // a goroutine is in reconcileAll
}

// reconcileLater lets every leader have the latest settings of these channels, after a pause. A goroutine does that, at
// most one per topic, which ends when it has succeeded, or with the cluster node. It takes mu.
func (l *Local) reconcileLater(pause time.Duration, channels ...*Channel) {
	if l.t.env.Cluster == nil || l.t.Partitions() == 1 {
		return
	}
	l.mu.Lock()
	u := &l.unreconciled
	for _, c := range channels {
		u.add(c.name)
	}
	begins := len(u.names) > 0 && !u.running
	u.running = u.running || begins
	l.mu.Unlock()
	if begins {
		l.t.env.Cluster.Spawn(func() { l.reconcileAll(pause) })
	}
}

func (u *unreconciled) add(name string) {
	if u.names == nil {
		u.names = map[string]bool{}
	}
	u.names[name] = true
}

// reconcileAll calls reconcile for what is in unreconciled, until nothing is left there. A round takes at most
// Options.PublishTimeout per channel, and the next one begins reconcileAfter later.
func (l *Local) reconcileAll(pause time.Duration) {
	cl := l.t.env.Cluster
	for l.t.env.Host.Pause(pause, cl.Ctx.Done()) {
		var failed []string
		for _, name := range l.takeUnreconciled() {
			c, ok := l.t.LookupChannel(name)
			if !ok {
				continue // this node leads nothing more of it, and the leaders compare its settings themselves
			}
			if err := c.reconcile(cl.Ctx); err != nil && cl.Ctx.Err() == nil {
				l.t.env.Log.Debug("a channel's settings could not be compared among the leaders; it is tried again",
					"topic", l.t.Name(), "channel", name, "error", err)
				failed = append(failed, name)
			}
		}
		if l.reconciled(failed) {
			return
		}
		pause = reconcileAfter
	}
}

// takeUnreconciled empties unreconciled, and returns the names that were there, sorted. It takes mu.
func (l *Local) takeUnreconciled() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := slices.Sorted(maps.Keys(l.unreconciled.names))
	l.unreconciled.names = nil
	return names
}

// reconciled puts back what failed. It says whether nothing is left to do; then the next reconcileLater starts a
// goroutine again. It takes mu.
func (l *Local) reconciled(failed []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range failed {
		l.unreconciled.add(name)
	}
	l.unreconciled.running = len(l.unreconciled.names) > 0
	return !l.unreconciled.running
}

// reconcile brings the latest settings to every leader. There is nothing to do for a channel that is shut: if another
// one took its place, that was with a change of leaderships, which has put its name into unreconciled again.
func (c *Channel) reconcile(ctx context.Context) error {
	if c.ephemeral || c.local.Err() != nil {
		return nil
	}
	var all []fold.ChannelSettings
	collect := func(result []byte) error {
		var s fold.ChannelSettings
		err := wire.DecodeResult(result, &s)
		all = append(all, s)
		return err
	}
	if err := c.ask(ctx, wire.Operation{Kind: wire.OpSettings}, nil, collect); err != nil {
		return err
	}
	latest, older, differ := compareSettings(all)
	switch {
	case differ:
		return c.decide(ctx)
	case older:
		return c.ask(ctx, wire.Operation{Kind: wire.OpConfigure, Settings: &latest}, nil, nil)
	}
	return nil
}

// compareSettings returns the latest of the leaders' settings, whether some leader has older ones, and whether two have
// different ones under the latest version.
func compareSettings(all []fold.ChannelSettings) (latest fold.ChannelSettings, older, differ bool) {
	for _, s := range all {
		if s.Version > latest.Version {
			latest = s
		}
	}
	for _, s := range all {
		older = older || s.Version < latest.Version
		differ = differ || s.Version == latest.Version && !sameContent(&s, &latest)
	}
	return latest, older, differ
}

// sameContent compares settings of one version as the log has them. Settings that the log cannot have are left alone:
// version 0 stands for none, and what is not valid here comes from another version of the program.
func sameContent(a, b *fold.ChannelSettings) bool {
	if a.Version == 0 || a.Validate() != nil || b.Validate() != nil {
		return true
	}
	return bytes.Equal(a.Append(nil), b.Append(nil))
}

// decide gives the settings of partition 0 a new version, and brings them to every leader. It is for settings that
// differ under one version: a change was stored in another partition, lost in partition 0 when its leader failed, and a
// caller who knew only the version before made another change. If partition 0 has older settings than the others, the
// next comparison goes on from there.
func (c *Channel) decide(ctx context.Context) error {
	var s fold.ChannelSettings
	first := func(n uint32) bool { return n == 0 }
	err := c.ask(ctx, wire.Operation{Kind: wire.OpSettings}, first, func(result []byte) error {
		return wire.DecodeResult(result, &s)
	})
	if err == nil {
		_, err = c.Configure(ctx, s)
	}
	return err
}
