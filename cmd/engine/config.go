package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/client"
)

const (
	envPrefix = "PENSTOCK_"
	envConfig = "PENSTOCK_CONFIG"

	// oldEnvPrefix began the variables before they were called after the product. The next version refuses them.
	oldEnvPrefix = "ENGINE_"

	// maxConfigBytes bounds the TOML file, so that a wrong --config cannot exhaust the memory.
	maxConfigBytes = 1 << 20
)

func (s *setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }
func (s *setting) env() string { return envPrefix + strings.ToUpper(s.key()) }

// config is the table of settings with the source of each value. In order of precedence the sources are flag,
// environment, file and default.
type config struct {
	node     *options
	settings []*setting
	source   map[string]string
	flags    map[string]*flagValue
	warnings []string // of old names in the environment
}

// flagValue remembers the value from the command line. Flags are parsed before the file is read, and must still take
// precedence over it.
type flagValue struct {
	value
	preset string
	said   *string
}

func (f *flagValue) Set(s string) error {
	if f.said != nil {
		switch f.value.(type) {
		case listValue, percentilesValue:
			s = *f.said + "," + s
		}
	}
	f.said = &s
	return f.value.Set(s)
}

func (f *flagValue) String() string { return f.preset }

// newConfig returns the table with every setting at its default, and adds its flags to fs.
func newConfig(fs *pflag.FlagSet) *config {
	n := new(options)
	c := &config{node: n, settings: settings(n), source: map[string]string{}, flags: map[string]*flagValue{}}
	for _, s := range c.settings {
		if err := s.value.Set(s.preset); err != nil {
			panic(fmt.Sprintf("BUG: the default of %s: %v", s.name, err))
		}
		c.source[s.name] = "default"
		f := &flagValue{value: s.value, preset: s.preset}
		c.flags[s.name] = f
		flag := fs.VarPF(f, s.name, "", s.help)
		flag.Annotations = map[string][]string{groupKey: {s.group}}
		if s.value.Type() == "bool" {
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

// variables returns the variables that are meant for serve, by their names without prefix. Those of the commands, and
// those that Kubernetes sets, are not.
func (c *config) variables(environ []string) map[string]variable {
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
	for _, name := range sortedKeys(old) {
		warning := "the environment variable " + old[name].name + " is called " + envPrefix + name +
			" now; the next version does not read the old name"
		if _, both := env[name]; both {
			warning += ", and this one does not either, because both are set"
		} else {
			env[name] = old[name]
		}
		c.warnings = append(c.warnings, warning)
	}
	return env
}

// load applies the file and the environment, and then the flags again.
func (c *config) load(environ []string) error {
	env := c.variables(environ)
	config := strings.TrimPrefix(envConfig, envPrefix)
	if c.node.config == "" {
		c.node.config = env[config].value
	}
	delete(env, config)
	if c.node.config != "" {
		if err := c.loadFile(c.node.config); err != nil {
			return err
		}
	}
	if err := c.loadEnv(env); err != nil {
		return err
	}
	for _, s := range c.settings {
		if said := c.flags[s.name].said; said != nil {
			if err := c.set(s, *said, "flag --"+s.name); err != nil {
				return err
			}
			if s.conceals() {
				return exposed(s)
			}
		}
	}
	return nil
}

func (c *config) set(s *setting, v, source string) error {
	if err := s.value.Set(v); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	c.source[s.name] = source
	return nil
}

func (c *config) loadEnv(env map[string]variable) error {
	known := make([]string, 0, len(c.settings)+1)
	for _, s := range c.settings {
		name := strings.TrimPrefix(s.env(), envPrefix)
		if v, ok := env[name]; ok {
			if err := c.set(s, v.value, "environment "+v.name); err != nil {
				return err
			}
			delete(env, name)
		}
		known = append(known, name)
	}
	known = append(known, strings.TrimPrefix(envConfig, envPrefix))
	for _, name := range sortedKeys(env) {
		return fmt.Errorf("the environment variable %s is not a setting%s; see penstock config",
			env[name].name, orNearest(name, envPrefix, known))
	}
	return nil
}

func (c *config) loadFile(name string) error {
	data, err := readConfig(name)
	if err != nil {
		return err
	}
	var file map[string]any
	if err := toml.Unmarshal(data, &file); err != nil {
		var de *toml.DecodeError
		if errors.As(err, &de) {
			line, col := de.Position()
			return fmt.Errorf("the configuration file %s is not valid TOML at line %d, column %d: %s",
				name, line, col, strings.TrimPrefix(de.Error(), "toml: "))
		}
		return fmt.Errorf("the configuration file %s is not valid TOML: %w", name, err)
	}
	byKey := map[string]*setting{}
	known := make([]string, 0, len(c.settings))
	for _, s := range c.settings {
		byKey[s.key()] = s
		known = append(known, s.key())
	}
	for _, k := range sortedKeys(file) {
		s := byKey[k]
		if s == nil {
			return fmt.Errorf("the configuration file %s has the unknown key %s%s; see penstock config",
				name, k, orNearest(k, "", known))
		}
		v, err := tomlText(file[k])
		if err != nil {
			return fmt.Errorf("the configuration file %s: %s: %w", name, k, err)
		}
		if err := c.set(s, v, "file "+name+", "+k); err != nil {
			return err
		}
		c.source[s.name] = "file " + name
	}
	return nil
}

func readConfig(name string) ([]byte, error) {
	st, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the configuration file %s does not exist", name)
	case err != nil:
		return nil, fmt.Errorf("the configuration file cannot be read: %w", err)
	case !st.Mode().IsRegular() || st.Size() > maxConfigBytes:
		return nil, fmt.Errorf("the configuration file %s is not a regular file of at most %s",
			name, formatBytes(maxConfigBytes))
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("the configuration file cannot be read: %w", err)
	}
	return data, nil
}

func tomlText(v any) (string, error) {
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
func (c *config) lookup(key string) (any, bool) {
	i := slices.IndexFunc(c.settings, func(s *setting) bool { return s.key() == key })
	if i < 0 {
		return nil, false
	}
	return c.settings[i].value.get(), true
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// nearest returns the known name that is the fewest single-character edits away from name, or "" if none is near: a
// name that shares little with the one that was given explains nothing.
func nearest(name string, known []string) string {
	best, bestEdits := "", maxEdits(name)+1
	for _, k := range known {
		if d := edits(name, k); d < bestEdits {
			best, bestEdits = k, d
		}
	}
	return best
}

// maxEdits is the largest number of edits at which a name counts as a misspelling of another.
func maxEdits(name string) int { return max(1, len(name)/3) }

// orNearest continues the sentence about an unknown name with the nearest known one, if there is one.
func orNearest(name, prefix string, known []string) string {
	near := nearest(name, known)
	if near == "" {
		return ""
	}
	return "; the nearest one is " + prefix + near
}

// edits returns the Levenshtein distance between a and b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
