package serve

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster"
	"penstock/internal/node"
	"penstock/internal/server"
	"penstock/internal/server/api"
)

// running has a node's settings and the parts of the node that follow them. Its reload reads the files of credentials
// and the sources of the settings again; SIGHUP and POST /reload call it. serve sets credentials and part before the
// first reload. A crash leaves nothing of it: what was changed is in the sources.
type running struct {
	*settings.Running
	file        string // of the settings; "": there is none
	level       *slog.LevelVar
	log         *slog.Logger
	credentials *credentials
	part        *clusterPart // nil on a single node

	mu     sync.Mutex // guards the rest, and is held while the node changes
	engine *node.Engine
	server *server.Server // nil: the node does not serve yet
	since  time.Time      // when the node took the settings that it uses
}

func newRunning(c *settings.Config, level *slog.LevelVar, log *slog.Logger) *running {
	return &running{Running: settings.NewRunning(c), file: c.File(), level: level, log: log, since: time.Now()}
}

// serves says that the node serves now: from here on a reload also changes settings, and credentials of the server.
func (r *running) serves(e *node.Engine, s *server.Server) {
	r.credentials.serves(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engine, r.server = e, s
}

// reload reads the files of credentials again, and then the settings, unless the node is starting. why says what made
// it do so.
func (r *running) reload(why string) *api.Reload {
	out := &api.Reload{Files: r.credentials.look(why, true)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.server == nil {
		return out
	}
	changed, restart, err := r.Reread(r.take)
	file := api.CredentialFile{Setting: "config", File: r.file, Result: api.Unchanged}
	switch {
	case err != nil:
		file.Result, file.Error = api.Refused, cli.Sentence(err)
		r.log.Error(why+": the settings were read again and cannot be used; the node goes on with what it had", "error", err)
	case len(changed) > 0:
		file.Result, r.since = api.Reloaded, time.Now()
		r.log.Info(why+": settings have changed", "settings", changes(changed))
	}
	if len(restart) > 0 {
		r.log.Warn(why+": settings were read again and need a restart", "settings", changes(restart))
	}
	if file.Since = r.since; r.file != "" || err != nil {
		out.Files = append(out.Files, file)
	}
	out.Changed, out.Restart = changed, restart
	return out
}

func changes(all []api.SettingChange) string {
	texts := make([]string, len(all))
	for i, c := range all {
		texts[i] = fmt.Sprintf("%s %s to %s", c.Setting, c.From, c.To)
	}
	return strings.Join(texts, ", ")
}

// take judges settings as those of a node that starts, and then makes the node use them. What the engine and the server
// refuse, judge has refused before, so that the node never uses a part of them.
func (r *running) take(next *settings.Config, changed []api.SettingChange) error {
	if _, err := judge(next, slog.New(slog.DiscardHandler), r.level); err != nil {
		return err
	}
	n := next.Node
	n.Engine.Cluster = &node.ClusterOptions{
		Replication: n.Cluster.ReplicationConfig(), LeaveTimeout: n.Cluster.LeaveTimeout,
		MaxHandshakes: n.Cluster.MaxHandshakes,
	}
	if err := r.engine.Change(n.Engine); err != nil {
		return err
	}
	if err := r.server.Change(nsqOptions(next, r.log, r.level)); err != nil {
		return err
	}
	if r.part != nil {
		cluster.Change(r.part.store, storeHabits(&n.Cluster))
	}
	if slices.ContainsFunc(changed, func(c api.SettingChange) bool { return c.Setting == "log_level" }) {
		return r.level.UnmarshalText([]byte(n.LogLevel))
	}
	return nil
}

// storeHabits are the options of the metadata store that may change.
func storeHabits(c *settings.Cluster) cluster.Options {
	return cluster.Options{
		DefaultReplicas: c.Replicas, RebalanceAfter: c.Rebalance.After, RebalanceMoves: c.Rebalance.Moves,
	}
}
