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
	cmd := o.Action("reload", "Make a node read its certificates, tokens and secrets again", cobra.NoArgs,
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
		"settings name, and say of each whether it was reloaded, is unchanged, or was refused. Connections stay. A set\n" +
		"that cannot be used as a whole is refused as a whole: the node goes on with what it had, and the exit code is\n" +
		"1. The node also looks by itself every few seconds, and at SIGHUP. In a cluster, ask every node. The token\n" +
		"needs admin on everything."
	return cmd
}

func printReload(w io.Writer, r *api.Reload) error {
	if len(r.Files) == 0 {
		fmt.Fprintln(w, "the node's settings name no file of credentials")
		return nil
	}
	t := cli.Table(w)
	fmt.Fprintln(t, "SETTING\tFILE\tRESULT\tIN USE SINCE")
	for _, f := range r.Files {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Setting, f.File, f.Result, cli.Stamp(f.Since))
	}
	return t.Flush()
}
