package settings

import (
	"fmt"
	"sync"

	"penstock/cmd/engine/internal/values"
	"penstock/internal/server/api"
)

// What happens to a setting of a node that runs, when its file says something else and the node is told to read it
// again. It is the column of the reference page.
const (
	NeedsRestart   = "needs a restart"
	ChangesAtOnce  = "at once"
	NewConnections = "new connections" // those that are open keep what they were told
	ContentOnly    = "the file's content"
)

// Running is the settings of a node that runs. serve makes it, reads the sources again with it when somebody asks, and
// answers GET /config from it. mu guards the fields; the configs themselves do not change once they are in it. A crash
// leaves nothing of it.
type Running struct {
	mu    sync.Mutex
	now   *Config
	texts map[string]string // of the sources when they were read, by the settings' names
}

// NewRunning begins with the settings of a node that starts. The node may change their options afterwards, as it finds
// its ports and its memory.
func NewRunning(c *Config) *Running { return &Running{now: c, texts: c.texts()} }

func (c *Config) texts() map[string]string {
	all := make(map[string]string, len(c.Settings))
	for _, s := range c.Settings {
		all[s.Name] = values.Plain(s.Value)
	}
	return all
}

// Reread reads the sources of the settings again, and gives the result to take: the settings of now, with what has
// changed of those that may. After an error everything is as it was. It returns what was changed, and what needs a
// restart.
func (r *Running) Reread(
	take func(next *Config, changed []api.SettingChange) error,
) (changed, restart []api.SettingChange, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, texts, err := r.now.again()
	if err != nil {
		return nil, nil, err
	}
	for i, s := range next.Settings {
		old := r.now.Settings[i]
		c := api.SettingChange{Setting: s.Key(), From: old.Value.String(), To: s.Value.String(), Source: next.Source[s.Name]}
		differs := texts[s.Name] != r.texts[s.Name]
		switch {
		case s.changes():
			if differs {
				changed = append(changed, c)
			}
			continue
		case differs:
			restart = append(restart, c)
		}
		text := old.Value.String()
		if texts[s.Name] = r.texts[s.Name]; values.Conceals(old.Value) {
			text = texts[s.Name]
		}
		if err := next.Set(s, text, r.now.Source[s.Name]); err != nil {
			return nil, nil, fmt.Errorf("BUG: %s does not take its own value: %w", s.Name, err)
		}
	}
	if len(changed) > 0 {
		if err := take(next, changed); err != nil {
			return nil, nil, err
		}
		r.now, r.texts = next, texts
	}
	return changed, restart, nil
}

// again reads the sources anew, and returns their texts as well.
func (c *Config) again() (*Config, map[string]string, error) {
	if c.Again == nil {
		return c, c.texts(), nil
	}
	next, err := c.Again()
	if err != nil {
		return nil, nil, err
	}
	next.Again, next.Node.Version = c.Again, c.Node.Version
	return next, next.texts(), nil
}

// Node returns the options of now. Nobody may change them.
func (r *Running) Node() *Options {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.Node
}

// Public returns the value of a setting by its key in TOML, but of none that must not leave the process.
func (r *Running) Public(key string) (any, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.Public(key)
}

// List returns the settings as GET /config shows them, and beside those that are otherwise in their sources now what
// these say. Secrets are not among them.
func (r *Running) List() []api.Setting {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, texts, err := r.now.again()
	all := make([]api.Setting, 0, len(r.now.Settings))
	for _, s := range r.now.Settings {
		if values.IsSecret(s.Value) {
			continue
		}
		row := api.Setting{
			Setting: s.Key(), Value: s.Value.Get(), Source: r.now.Source[s.Name], WhileRunning: s.WhileRunning,
		}
		switch {
		case err != nil:
		case texts[s.Name] == r.texts[s.Name]:
		case values.Conceals(s.Value):
			row.Says = values.IsSet
		default:
			row.Says = texts[s.Name]
		}
		all = append(all, row)
	}
	return all
}
