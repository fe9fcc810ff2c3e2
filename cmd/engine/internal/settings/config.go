package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/cmd/engine/internal/values"
)

const (
	envPrefix = "PENSTOCK_"
	envConfig = "PENSTOCK_CONFIG"

	// oldEnvPrefix began the variables before they were called after the product. The next version refuses them.
	oldEnvPrefix = "ENGINE_"

	// maxConfigBytes bounds the TOML file, so that a wrong --config cannot exhaust the memory.
	maxConfigBytes = 1 << 20
)

func (s *Setting) Key() string { return strings.ReplaceAll(s.Name, "-", "_") }
func (s *Setting) env() string { return envPrefix + strings.ToUpper(s.Key()) }

// Config is the table of settings with the source of each value. In order of precedence the sources are flag,
// environment, file and default.
type Config struct {
	Node     *Options
	Settings []*Setting
	Source   map[string]string
	Warnings []string // of old names in the environment
	// Again reads the sources anew, with the same flags; nil: there are none that could have changed.
	Again func() (*Config, error)
	flags map[string]*values.Flag
}

// help is the text of the flag: that a setting needs a restart is not said of each.
func (s *Setting) help() string {
	if s.WhileRunning == NeedsRestart {
		return s.Help
	}
	return s.Help + " (while running: " + s.WhileRunning + ")"
}

// New returns the table with every setting at its default, and adds its flags to fs.
func New(fs *pflag.FlagSet) *Config {
	n := new(Options)
	c := &Config{Node: n, Settings: Table(n), Source: map[string]string{}, flags: map[string]*values.Flag{}}
	for _, s := range c.Settings {
		if err := s.Value.Set(s.Preset); err != nil {
			panic(fmt.Sprintf("BUG: the default of %s: %v", s.Name, err))
		}
		c.Source[s.Name] = "default"
		f := &values.Flag{Value: s.Value, Preset: s.Preset}
		c.flags[s.Name] = f
		flag := fs.VarPF(f, s.Name, "", s.help())
		flag.Annotations = map[string][]string{cli.GroupKey: {s.Group}}
		if s.Value.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	fs.SortFlags = false // help lists them in the order of the table
	fs.StringVar(&n.config, "config", "", "TOML `FILE` with settings (or PENSTOCK_CONFIG)")
	return c
}

// variable is one of the environment that is meant for serve.
type variable struct{ name, value string }

// serviceLink matches what Kubernetes sets in every pod for each service of its namespace. Those of the services
// penstock and penstock-client begin with our prefix.
var serviceLink = regexp.MustCompile(
	`^\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=|^\w+_PORT=(tcp|udp|sctp)://`)

// File returns the name of the TOML file; "": there is none.
func (c *Config) File() string { return c.Node.config }

// Renew makes Again read the same file and environment as Load has.
func (c *Config) Renew(environ []string) {
	c.Again = func() (*Config, error) {
		next := New(pflag.NewFlagSet("", pflag.ContinueOnError))
		next.Node.config = c.Node.config
		for name, f := range c.flags {
			next.flags[name].Said = f.Said
		}
		return next, next.Load(environ)
	}
}

// variables returns the variables that are meant for serve, by their names without prefix. Those of the commands, and
// those that Kubernetes sets, are not.
func (c *Config) variables(environ []string) map[string]variable {
	env, old := map[string]variable{}, map[string]variable{}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		if v == "" || serviceLink.MatchString(kv) || k == client.EnvAddress || k == client.EnvNodes || k == client.EnvToken {
			continue
		}
		if name, ours := strings.CutPrefix(k, envPrefix); ours {
			env[name] = variable{k, v}
		} else if name, ours := strings.CutPrefix(k, oldEnvPrefix); ours {
			old[name] = variable{k, v}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		warning := "the environment variable " + old[name].name + " is called " + envPrefix + name +
			" now; the next version does not read the old name"
		if _, both := env[name]; both {
			warning += ", and this one does not either, because both are set"
		} else {
			env[name] = old[name]
		}
		c.Warnings = append(c.Warnings, warning)
	}
	return env
}

// Load applies the file and the environment, and then the flags again.
func (c *Config) Load(environ []string) error {
	env := c.variables(environ)
	config := strings.TrimPrefix(envConfig, envPrefix)
	if c.Node.config == "" {
		c.Node.config = env[config].value
	}
	delete(env, config)
	if c.Node.config != "" {
		if err := c.loadFile(c.Node.config); err != nil {
			return err
		}
	}
	if err := c.loadEnv(env); err != nil {
		return err
	}
	for _, s := range c.Settings {
		if said := c.flags[s.Name].Said; said != nil {
			if err := c.Set(s, *said, "flag --"+s.Name); err != nil {
				return err
			}
			if values.Conceals(s.Value) {
				return exposed(s)
			}
		}
	}
	return nil
}

// Set sets a setting, and says in an error where the value came from.
func (c *Config) Set(s *Setting, v, source string) error {
	if err := s.Value.Set(v); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	c.Source[s.Name] = source
	return nil
}

func (c *Config) loadEnv(env map[string]variable) error {
	known := make([]string, 0, len(c.Settings)+1)
	for _, s := range c.Settings {
		name := strings.TrimPrefix(s.env(), envPrefix)
		if v, ok := env[name]; ok {
			if err := c.Set(s, v.value, "environment "+v.name); err != nil {
				return err
			}
			delete(env, name)
		}
		known = append(known, name)
	}
	known = append(known, strings.TrimPrefix(envConfig, envPrefix))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		return fmt.Errorf("the environment variable %s is not a setting%s; see penstock config",
			env[name].name, cli.OrNearest(name, envPrefix, known))
	}
	return nil
}

func (c *Config) loadFile(name string) error {
	file, err := ReadFile(name)
	if err != nil {
		return err
	}
	byKey := map[string]*Setting{}
	known := make([]string, 0, len(c.Settings))
	for _, s := range c.Settings {
		byKey[s.Key()] = s
		known = append(known, s.Key())
	}
	for _, k := range slices.Sorted(maps.Keys(file)) {
		s := byKey[k]
		if s == nil {
			return fmt.Errorf("the configuration file %s has the unknown key %s%s; see penstock config",
				name, k, cli.OrNearest(k, "", known))
		}
		v, err := TOMLText(file[k])
		if err != nil {
			return fmt.Errorf("the configuration file %s: %s: %w", name, k, err)
		}
		if err := c.Set(s, v, "file "+name+", "+k); err != nil {
			return err
		}
		c.Source[s.Name] = "file " + name
	}
	return nil
}

// ReadFile reads a configuration file, ours or nsqd's.
func ReadFile(name string) (file map[string]any, err error) {
	st, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the configuration file %s does not exist", name)
	case err != nil:
		return nil, fmt.Errorf("the configuration file cannot be read: %w", err)
	case !st.Mode().IsRegular() || st.Size() > maxConfigBytes:
		return nil, fmt.Errorf("the configuration file %s is not a regular file of at most %s",
			name, values.FormatBytes(maxConfigBytes))
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("the configuration file cannot be read: %w", err)
	}
	if err := toml.Unmarshal(data, &file); err != nil {
		where := ""
		if de, is := errors.AsType[*toml.DecodeError](err); is {
			line, col := de.Position()
			where = fmt.Sprintf(" at line %d, column %d", line, col)
		}
		return nil, fmt.Errorf("the configuration file %s is not valid TOML%s: %s",
			name, where, strings.TrimPrefix(err.Error(), "toml: "))
	}
	return file, nil
}

// TOMLText returns a value of a TOML file in the notation of a flag.
func TOMLText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	}
	return "", errors.New("the value must be a string, a whole number or true or false")
}

// lookup returns the value of the setting with this TOML key, for GET /config/<name>.
func (c *Config) lookup(key string) (any, bool) {
	i := slices.IndexFunc(c.Settings, func(s *Setting) bool { return s.Key() == key })
	if i < 0 {
		return nil, false
	}
	return c.Settings[i].Value.Get(), true
}

// Public looks a setting up like lookup, but hides the settings that must not leave the process.
func (c *Config) Public(key string) (any, bool) {
	if s := c.Named(strings.ReplaceAll(key, "_", "-")); s != nil && values.IsSecret(s.Value) {
		return nil, false
	}
	return c.lookup(key)
}

// Named returns the setting with this name, or nil.
func (c *Config) Named(name string) *Setting {
	i := slices.IndexFunc(c.Settings, func(s *Setting) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return c.Settings[i]
}
