package settings

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// Command prints all settings.
func Command() *cobra.Command {
	var asJSON, defaults bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print every setting with its value and where it comes from",
		Long: "Print every setting with its value and where it comes from. Flags, environment variables and the file are\n" +
			"read as by serve. With --defaults, print a TOML file with every setting commented out. What a node that runs\n" +
			"uses, and what its file says now, is printed by `penstock config running`.",
		Args: cobra.NoArgs,
	}
	c := New(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&defaults, "defaults", false,
		"print a TOML file with every setting and its default, commented out")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if defaults {
			return c.printDefaults(cmd.OutOrStdout())
		}
		if err := c.Load(os.Environ()); err != nil {
			return cli.Fail(cli.ExitUsage, err)
		}
		for _, w := range c.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "penstock: %s\n", w)
		}
		if asJSON {
			return c.printJSON(cmd.OutOrStdout())
		}
		return c.printTable(cmd.OutOrStdout())
	}
	cmd.AddCommand(runningCommand())
	return cmd
}

// runningCommand prints the settings of a node that runs.
func runningCommand() *cobra.Command {
	o := new(cli.Operator)
	cmd := o.Action("running", "Print the settings of a node that runs, and what its file says now", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			return cli.Show(ctx, o, "/config", nil, printRunning)
		})
	cmd.Long = "Print every setting of a node that runs, with its value, where it comes from, and what becomes of\n" +
		"another value while the node runs. Where the file says something else by now, the line says both:\n" +
		"penstock reload makes the node take it, or says that it needs a restart. Secrets are not shown. The\n" +
		"token needs view on everything."
	return o.Anywhere(cmd)
}

func printRunning(w io.Writer, all *api.Settings) error {
	return cli.Rows(w, "SETTING\tVALUE\tSOURCE\tWHILE RUNNING", all.Settings, func(s *api.Setting) []any {
		value := fmt.Sprint(s.Value)
		if s.Says != "" {
			value = fmt.Sprintf("running %s, file says %s", value, s.Says)
		}
		return []any{s.Setting, cli.Dash(value), s.Source, s.WhileRunning}
	})
}

func (c *Config) printTable(w io.Writer) error {
	tw := cli.Table(w)
	for _, s := range c.Settings {
		v := s.Value.String()
		if v == "" {
			v = `""`
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", s.Key(), v, c.Source[s.Name])
	}
	return tw.Flush()
}

func (c *Config) printJSON(w io.Writer) error {
	type row struct {
		Key    string `json:"key"`
		Flag   string `json:"flag"`
		Env    string `json:"env"`
		Value  any    `json:"value"`
		Source string `json:"source"`
	}
	rows := make([]row, 0, len(c.Settings))
	for _, s := range c.Settings {
		rows = append(rows, row{s.Key(), "--" + s.Name, s.env(), s.Value.Get(), c.Source[s.Name]})
	}
	return cli.PrintJSON(w, rows)
}

func (c *Config) printDefaults(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Settings of `penstock serve`, each with its default.\n" +
		"# Remove the # in front of a key to change it. A flag (--data-path) overrides the environment\n" +
		"# (PENSTOCK_DATA_PATH), and the environment overrides this file. Units of sizes are B, KB, KiB, MB, MiB, GB and\n" +
		"# GiB, units of times ms, s, m and h.\n")
	group := ""
	for _, s := range c.Settings {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n## %s\n", group)
		}
		fmt.Fprintf(&b, "\n# %s\n# while running: %s\n# %s = %s\n", s.Help, s.Running(), s.Key(), s.tomlPreset())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tomlPreset returns the default in TOML's notation: whole numbers and booleans bare, everything else quoted.
func (s *Setting) tomlPreset() string {
	if _, err := strconv.ParseInt(s.Preset, 10, 64); err == nil || s.Value.Type() == "bool" {
		return s.Preset
	}
	return strconv.Quote(s.Preset)
}
