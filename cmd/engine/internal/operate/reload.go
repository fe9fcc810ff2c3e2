package operate

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// ReloadCommand asks a node to look at its files of credentials, and says what came of each.
func ReloadCommand() *cobra.Command {
	o := new(operator)
	return o.Anywhere(o.reloadCommand())
}

func (o *operator) reloadCommand() *cobra.Command {
	cmd := o.Action("reload", "Make a node read its settings, certificates, tokens and secrets again", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			var r api.Reload
			if err := o.Client.Post(ctx, "/reload", nil, nil, &r); err != nil {
				return err
			}
			if err := o.Print(&r, func(w io.Writer) error { return printReload(w, &r) }); err != nil {
				return err
			}
			if why := r.Refusals(); why != "" {
				return fmt.Errorf("the node goes on with what it had, and would not start with these files: %s", why)
			}
			return nil
		})
	cmd.Long = "Make a running node look at all files of certificates, keys, tokens, passwords and secrets that its\n" +
		"settings name, and at its configuration file, and say of each whether it was reloaded, is unchanged, or was\n" +
		"refused. Connections stay. A set that cannot be used as a whole, and a configuration file with a mistake, is\n" +
		"refused as a whole: the node goes on with what it had, and the exit code is 1. A line says which settings have\n" +
		"changed, and one which need a restart (the column \"while running\" of docs/reference/settings.md). The node\n" +
		"does the same at SIGHUP, and looks at the files of credentials by itself every few seconds. In a cluster, ask\n" +
		"every node. The token needs admin on everything."
	return cmd
}

func printReload(w io.Writer, r *api.Reload) error {
	if len(r.Files) == 0 {
		fmt.Fprintln(w, "the node's settings name no file of credentials, and it has no configuration file")
		return nil
	}
	err := cli.Rows(w, "SETTING\tFILE\tRESULT\tIN USE SINCE", r.Files, func(f *api.CredentialFile) []any {
		return []any{f.Setting, f.File, f.Result, cli.Stamp(f.Since)}
	})
	if err != nil {
		return err
	}
	for _, c := range r.Changed {
		fmt.Fprintf(w, "changed: %s from %q to %q\n", c.Setting, c.From, c.To)
	}
	for _, c := range r.Restart {
		fmt.Fprintf(w, "needs a restart: %s runs with %q, %s says %q\n", c.Setting, c.From, c.Source, c.To)
	}
	return nil
}
