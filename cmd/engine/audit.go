package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/server/api"
)

// auditCommand shows the audit of all nodes, of which each keeps its own.
func (o *operator) auditCommand() *cobra.Command {
	count := 50
	cmd := o.action("audit", "Show who changed what, and who was refused", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			if count < 1 || count > api.MaxPageCount {
				return &exitError{exitUsage, fmt.Errorf("--count is 1 to %d", api.MaxPageCount)}
			}
			var all api.ClusterAudit
			if err := o.client.Get(ctx, "/audit", url.Values{"all": {""}, "count": {strconv.Itoa(count)}}, &all); err != nil {
				return err
			}
			var missing error
			if len(all.Missing) > 0 {
				var why []string
				for _, m := range all.Missing {
					why = append(why, fmt.Sprintf("node %s: %s", m.Node, m.Why))
				}
				missing = &exitError{exitPartial, fmt.Errorf("the result is partial: %s", strings.Join(why, "; "))}
			}
			if o.asJSON {
				return cmp.Or(printJSON(o.out, &all), missing)
			}
			return cmp.Or(o.printAudit(&all), missing)
		})
	cmd.Flags().IntVar(&count, "count", count, "number of entries to show, the newest of all nodes")
	cmd.Long = "Show the newest changes and refusals of all nodes that answer, the oldest first. At most a quarter\n" +
		"of them are refusals of clients that proved nothing, if there are others. Each node keeps its own on\n" +
		"disk; the nodes' logs have all of them. The last line says since when nothing is missing. The token needs admin " +
		"on everything."
	return cmd
}

func (o *operator) printAudit(all *api.ClusterAudit) error {
	t := table(o.out)
	fmt.Fprintln(t, "TIME\tNODE\tWHO\tFROM\tWHAT\tOF\tRESULT")
	for i := range all.Entries {
		e := &all.Entries[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", stamp(e.Time), dash(e.Node), dash(e.Who), dash(e.From), dash(e.What),
			dash(strings.TrimSpace(e.Names+" "+e.Body)), dash(e.Result))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(o.out, knownOf(all))
	for _, k := range all.Known {
		if k.NotWritten > 0 {
			fmt.Fprintf(o.out, "node %s could not write %d entries to its disk: its log has them, and a restart forgets "+
				"them here\n", dash(k.Node), k.NotWritten)
		}
	}
	return nil
}

// knownOf says what may be concluded from what is not listed.
func knownOf(all *api.ClusterAudit) string {
	if all.Since.IsZero() {
		return "since when nothing is missing is not known: a node does not say it"
	}
	since := stamp(all.Since.Add(time.Millisecond)) // it is printed rounded down
	if len(all.Entries) == 0 {
		return "nothing was changed, and nobody was refused, since " + since
	}
	return "the nodes have all entries since " + since
}
