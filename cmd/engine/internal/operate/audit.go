package operate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// AuditCommand shows the audit of all nodes, of which each keeps its own.
func AuditCommand() *cobra.Command {
	o := new(operator)
	return o.Anywhere(o.auditCommand())
}

func (o *operator) auditCommand() *cobra.Command {
	count := 50
	cmd := o.Action("audit", "Show who changed what, and who was refused", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			if count < 1 || count > api.MaxPageCount {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("--count is 1 to %d", api.MaxPageCount))
			}
			var all api.ClusterAudit
			if err := o.Client.Get(ctx, "/audit", url.Values{"all": {""}, "count": {strconv.Itoa(count)}}, &all); err != nil {
				return err
			}
			var lacks []string
			for _, m := range all.Missing {
				lacks = append(lacks, fmt.Sprintf("node %s: %s", m.Node, m.Why))
			}
			return cmp.Or(o.Print(&all, func(w io.Writer) error { return printAudit(w, &all) }), cli.Partial(lacks))
		})
	cmd.Flags().IntVar(&count, "count", count, "number of entries to show, the newest of all nodes")
	cmd.Long = "Show the newest changes and refusals of all nodes that answer, the oldest first. At most a quarter\n" +
		"of them are refusals of clients that proved nothing, if there are others. Each node keeps its own on\n" +
		"disk; the nodes' logs have all of them. The last line says since when nothing is missing. The token needs admin " +
		"on everything."
	return cmd
}

func printAudit(w io.Writer, all *api.ClusterAudit) error {
	err := cli.Rows(w, "TIME\tNODE\tWHO\tFROM\tWHAT\tOF\tRESULT", all.Entries, func(e *api.NodeEntry) []any {
		return []any{
			cli.Stamp(e.Time), cli.Dash(e.Node), cli.Dash(e.Who), cli.Dash(e.From), cli.Dash(e.What),
			cli.Dash(strings.TrimSpace(e.Names + " " + e.Body)), cli.Dash(e.Result),
		}
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, knownOf(all))
	for _, k := range all.Known {
		if k.NotWritten > 0 {
			fmt.Fprintf(w, "node %s could not write %d entries to its disk: its log has them, and a restart forgets "+
				"them here\n", cli.Dash(k.Node), k.NotWritten)
		}
	}
	return nil
}

// knownOf says what may be concluded from what is not listed.
func knownOf(all *api.ClusterAudit) string {
	if all.Since.IsZero() {
		return "since when nothing is missing is not known: a node does not say it"
	}
	since := cli.Stamp(all.Since.Add(time.Millisecond)) // it is printed rounded down
	if len(all.Entries) == 0 {
		return "nothing was changed, and nobody was refused, since " + since
	}
	return "the nodes have all entries since " + since
}
