package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// listLags prints what waits in each partition of the channels of a topic.
func (o *operator) listLags(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return cli.Fail(cli.ExitUsage, errors.New("--partitions needs the name of a topic: penstock channel list TOPIC "+
			"--partitions"))
	}
	all := api.ChannelPage{Channels: []api.ListedChannel{}, Missing: []api.Missing{}}
	for {
		q := cli.QueryOf(args[0], "")
		q.Set("partitions", "true")
		q.Set("count", strconv.Itoa(api.MaxPageCount))
		q.Set("offset", strconv.Itoa(len(all.Channels)))
		var page api.ChannelPage
		if err := o.Client.Get(ctx, "/channels", q, &page); err != nil {
			return err
		}
		all.Channels, all.Count = append(all.Channels, page.Channels...), page.Count
		all.Missing, all.Unserved = page.Missing, page.Unserved
		if len(page.Channels) == 0 || len(all.Channels) >= page.Count {
			break
		}
	}
	missing := lacksOf(args[0], &all)
	if o.AsJSON {
		return cmp.Or(cli.PrintJSON(o.Out, &all), missing)
	}
	t := cli.Table(o.Out)
	fmt.Fprintln(t, "CHANNEL\tPARTITION\tLEADER\tDEPTH\tIN FLIGHT\tDEFERRED\tOLDEST\tHELD UP BY\tBEHIND IT")
	for i := range all.Channels {
		for _, p := range all.Channels[i].Partitions {
			behind := "-"
			if p.BlockedCount > 0 {
				behind = strconv.FormatUint(p.BlockedCount, 10)
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", all.Channels[i].Name, p.Partition, p.Leader, p.Depth,
				p.InFlightCount, p.DeferredCount, ageText(p.OldestSeconds), cli.Dash(p.BlockedBy), behind)
		}
	}
	return cmp.Or(t.Flush(), missing)
}

// ageText formats an age for a table. It writes a dash for 0, since then no message waits.
func ageText(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// lacksOf returns an error that says which nodes or partitions a list of channels lacks, or nil if it is whole.
func lacksOf(topic string, page *api.ChannelPage) error {
	var lacks []string
	for _, m := range page.Missing {
		lacks = append(lacks, fmt.Sprintf("node %s does not say its numbers (%s)", m.Node, strings.TrimSpace(m.Why)))
	}
	if len(page.Unserved) > 0 {
		lacks = append(lacks, fmt.Sprintf("nobody serves %s of topic %s", cli.PartitionNames(page.Unserved), topic))
	}
	return cli.Partial(lacks)
}
