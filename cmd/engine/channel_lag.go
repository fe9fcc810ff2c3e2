package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"penstock/internal/server"
)

// listLags prints what waits in each partition of the channels of a topic.
func (o *operator) listLags(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return &exitError{exitUsage, errors.New("--partitions needs the name of a topic: engine channel list TOPIC " +
			"--partitions")}
	}
	all := server.ChannelPage{Channels: []server.ListedChannel{}, Missing: []server.Missing{}}
	for {
		q := of(args[0], "")
		q.Set("partitions", "true")
		q.Set("count", strconv.Itoa(server.MaxPageCount))
		q.Set("offset", strconv.Itoa(len(all.Channels)))
		var page server.ChannelPage
		if err := o.client.Get(ctx, "/channels", q, &page); err != nil {
			return err
		}
		all.Channels, all.Count = append(all.Channels, page.Channels...), page.Count
		all.Missing, all.Unserved = page.Missing, page.Unserved
		if len(page.Channels) == 0 || len(all.Channels) >= page.Count {
			break
		}
	}
	missing := lacksOf(args[0], &all)
	if o.asJSON {
		return printed(printJSON(o.out, &all), missing)
	}
	t := table(o.out)
	fmt.Fprintln(t, "CHANNEL\tPARTITION\tLEADER\tDEPTH\tIN FLIGHT\tDEFERRED\tOLDEST\tHELD UP BY\tBEHIND IT")
	for i := range all.Channels {
		for _, p := range all.Channels[i].Partitions {
			behind := "-"
			if p.BlockedCount > 0 {
				behind = strconv.FormatUint(p.BlockedCount, 10)
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", all.Channels[i].Name, p.Partition, p.Leader, p.Depth,
				p.InFlightCount, p.DeferredCount, ageText(p.OldestSeconds), dash(p.BlockedBy), behind)
		}
	}
	return printed(t.Flush(), missing)
}

// ageText writes an age; 0: there is nothing that has one.
func ageText(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// lacksOf says what a list of channels lacks; nil: nothing.
func lacksOf(topic string, page *server.ChannelPage) error {
	var lacks []string
	for _, m := range page.Missing {
		lacks = append(lacks, fmt.Sprintf("node %s does not say its numbers (%s)", m.Node, strings.TrimSpace(m.Why)))
	}
	if len(page.Unserved) > 0 {
		lacks = append(lacks, fmt.Sprintf("nobody serves %s of topic %s", partitionNames(page.Unserved), topic))
	}
	return partial(lacks)
}
