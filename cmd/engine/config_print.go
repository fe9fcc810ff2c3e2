package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func configCommand() *cobra.Command {
	var asJSON, defaults bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print every setting with its value and where it comes from",
		Long: "Print every setting with its value and where it comes from. Flags, environment variables and the file are\n" +
			"read as by serve. With --defaults, print a TOML file with every setting commented out.",
		Args: cobra.NoArgs,
	}
	c := newConfig(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&defaults, "defaults", false,
		"print a TOML file with every setting and its default, commented out")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if defaults {
			return c.printDefaults(cmd.OutOrStdout())
		}
		if err := c.load(os.Environ()); err != nil {
			return &exitError{exitUsage, err}
		}
		for _, w := range c.warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "penstock: %s\n", w)
		}
		if asJSON {
			return c.printJSON(cmd.OutOrStdout())
		}
		return c.printTable(cmd.OutOrStdout())
	}
	return cmd
}

func (c *config) printTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range c.settings {
		v := s.value.String()
		if v == "" {
			v = `""`
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", s.key(), v, c.source[s.name])
	}
	return tw.Flush()
}

func (c *config) printJSON(w io.Writer) error {
	type row struct {
		Key    string `json:"key"`
		Flag   string `json:"flag"`
		Env    string `json:"env"`
		Value  any    `json:"value"`
		Source string `json:"source"`
	}
	rows := make([]row, 0, len(c.settings))
	for _, s := range c.settings {
		rows = append(rows, row{s.key(), "--" + s.name, s.env(), s.value.get(), c.source[s.name]})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

func (c *config) printDefaults(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Settings of `penstock serve`, each with its default.\n" +
		"# Remove the # in front of a key to change it. A flag (--data-path) overrides the environment\n" +
		"# (PENSTOCK_DATA_PATH), and the environment overrides this file. Units of sizes are B, KB, KiB, MB, MiB, GB and\n" +
		"# GiB, units of times ms, s, m and h.\n")
	group := ""
	for _, s := range c.settings {
		if s.group != group {
			group = s.group
			fmt.Fprintf(&b, "\n## %s\n", group)
		}
		fmt.Fprintf(&b, "\n# %s\n# %s = %s\n", s.help, s.key(), s.tomlPreset())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tomlPreset returns the default in TOML's notation: whole numbers and booleans bare, everything else quoted.
func (s *setting) tomlPreset() string {
	if _, err := strconv.ParseInt(s.preset, 10, 64); err == nil || s.value.Type() == "bool" {
		return s.preset
	}
	return strconv.Quote(s.preset)
}
