package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"
)

const (
	envPrefix = "ENGINE_"
	envConfig = "ENGINE_CONFIG"

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
}

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
	fs.StringVar(&n.config, "config", "", "TOML `FILE` with settings (or ENGINE_CONFIG)")
	return c
}

// load applies the file and the environment, and then the flags again.
func (c *config) load(environ []string) error {
	env := map[string]string{}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(k, envPrefix) && v != "" {
			env[k] = v
		}
	}
	if c.node.config == "" {
		c.node.config = env[envConfig]
	}
	delete(env, envConfig)
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
			if conceals(s.value) {
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

func (c *config) loadEnv(env map[string]string) error {
	known := make([]string, 0, len(c.settings)+1)
	for _, s := range c.settings {
		if v, ok := env[s.env()]; ok {
			if err := c.set(s, v, "environment "+s.env()); err != nil {
				return err
			}
			delete(env, s.env())
		}
		known = append(known, strings.TrimPrefix(s.env(), envPrefix))
	}
	known = append(known, strings.TrimPrefix(envConfig, envPrefix))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		return fmt.Errorf("the environment variable %s is not a setting%s; see engine config",
			k, orNearest(strings.TrimPrefix(k, envPrefix), envPrefix, known))
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
	for _, k := range slices.Sorted(maps.Keys(file)) {
		s := byKey[k]
		if s == nil {
			return fmt.Errorf("the configuration file %s has the unknown key %s%s; see engine config",
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
	return c.settings[i].value.Get(), true
}

// public is lookup without the settings that must not leave the process.
func (c *config) public(key string) (any, bool) {
	if s := c.named(strings.ReplaceAll(key, "_", "-")); s != nil && s.secret {
		return nil, false
	}
	return c.lookup(key)
}

// named returns the setting with this name, or nil.
func (c *config) named(name string) *setting {
	i := slices.IndexFunc(c.settings, func(s *setting) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return c.settings[i]
}
