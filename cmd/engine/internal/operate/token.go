package operate

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// TokenCommand has the commands of penstock token below it.
func TokenCommand() *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Show the tokens that a node knows",
		Long: "Show the tokens that a node knows. They are made, changed and taken away in the file of its\n" +
			"setting auth-file, which has hashes of their secrets; the node takes a changed file by itself.",
	}
	o.Flags(cmd)
	list := o.Action("list", "List the tokens of a node's file, and what they may do", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			return cli.Show(ctx, &o.Operator, "/tokens", nil, printTokens)
		})
	list.Long = "List the tokens of a node's file as it uses them now: who they are, and what they may do, a line\n" +
		"for each grant. Secrets are not known to the node. Tokens of auth servers are known to these only.\n" +
		"In a cluster each node has a file of its own. The token needs admin on everything."
	cmd.AddCommand(list)
	return cmd
}

func printTokens(w io.Writer, all *api.Tokens) error {
	t := cli.Table(w)
	fmt.Fprintln(t, "TOKEN\tMAY\tTOPICS\tCHANNELS")
	for _, token := range all.Tokens {
		for _, g := range token.Grants {
			cli.Row(t, cli.Dash(token.Name), strings.Join(g.Permissions, ","), cli.Dash(strings.Join(g.Topics, ",")),
				cli.Dash(strings.Join(g.Channels, ",")))
		}
	}
	return t.Flush()
}
