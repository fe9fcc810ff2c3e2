package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"penstock/internal/server/api"
)

// reloadCommand asks a node to look at its files of credentials, and says what came of each.
func (o *operator) reloadCommand() *cobra.Command {
	cmd := o.action("reload", "Make a node read its certificates, tokens and secrets again", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			var r api.Reload
			if err := o.client.Post(ctx, "/reload", nil, nil, &r); err != nil {
				return err
			}
			if o.asJSON {
				if err := printJSON(o.out, &r); err != nil {
					return err
				}
			} else if err := o.printReload(&r); err != nil {
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

func (o *operator) printReload(r *api.Reload) error {
	if len(r.Files) == 0 {
		fmt.Fprintln(o.out, "the node's settings name no file of credentials")
		return nil
	}
	t := table(o.out)
	fmt.Fprintln(t, "SETTING\tFILE\tRESULT\tIN USE SINCE")
	for _, f := range r.Files {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Setting, f.File, f.Result, stamp(f.Since))
	}
	return t.Flush()
}
