package operate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
)

// consumerRow is one subscription at one leader. A client of a topic whose partitions several nodes lead has one at
// each. The names in JSON are those of /stats.
type consumerRow struct {
	Leader        string `json:"leader"` // the node that delivers: its name, or its address if it is in no cluster
	ClientID      string `json:"client_id"`
	Hostname      string `json:"hostname"`
	RemoteAddress string `json:"remote_address"`
	UserAgent     string `json:"user_agent"`
	ReadyCount    int    `json:"ready_count"`
	InFlightCount int    `json:"in_flight_count"`
	MessageCount  uint64 `json:"message_count"`
	FinishCount   uint64 `json:"finish_count"`
	RequeueCount  uint64 `json:"requeue_count"`
	ConnectTime   int64  `json:"connect_ts"`
	TLS           bool   `json:"tls"`
	AuthIdentity  string `json:"auth_identity,omitempty"`
}

func (o *operator) consumersCommand() *cobra.Command {
	cmd := o.Action("consumers TOPIC CHANNEL", "Show who consumes a channel", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			rows, missing, err := o.consumers(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			return cmp.Or(o.Print(rows, func(w io.Writer) error { return printConsumers(w, rows) }), missing)
		})
	cmd.Long = "Show who consumes a channel. In a cluster, all live nodes are asked; a client that gets messages from\n" +
		"several leaders has a row for each. Messages are counted since the client subscribed."
	return cmd
}

func printConsumers(w io.Writer, rows []consumerRow) error {
	const head = "CLIENT\tHOST\tADDRESS\tLEADER\tRDY\tIN FLIGHT\tMESSAGES\tFINISHED\tREQUEUED\tSINCE\tIDENTITY"
	return cli.Rows(w, head, rows, func(r *consumerRow) []any {
		return []any{
			cli.Dash(r.ClientID), cli.Dash(r.Hostname), cli.Dash(r.RemoteAddress), r.Leader, r.ReadyCount, r.InFlightCount,
			r.MessageCount, r.FinishCount, r.RequeueCount, cli.Stamp(time.Unix(r.ConnectTime, 0)), cli.Dash(r.AuthIdentity),
		}
	})
}

// consumers returns who consumes a channel. missing names the nodes that did not answer.
func (o *operator) consumers(ctx context.Context, topic, channel string) (rows []consumerRow, missing, err error) {
	nodes, gone, err := o.Members(ctx)
	if err != nil {
		return nil, nil, err
	}
	rows = []consumerRow{}
	found := false
	for _, n := range nodes {
		var st struct {
			Topics []struct {
				Channels []struct {
					Name    string        `json:"channel_name"`
					Clients []consumerRow `json:"clients"`
				} `json:"channels"`
			} `json:"topics"`
		}
		q := url.Values{"format": {"json"}, "include_mem": {"false"}, "topic": {topic}, "channel": {channel}}
		switch err := n.Client.Get(ctx, "/stats", q, &st); {
		case err != nil && len(nodes) == 1:
			return nil, nil, err
		case err != nil:
			gone = append(gone, fmt.Sprintf("node %s: %v", n.Name, err))
			continue
		}
		for _, t := range st.Topics {
			for _, c := range t.Channels {
				found = found || c.Name == channel
				for _, r := range c.Clients {
					r.Leader = n.Name
					rows = append(rows, r)
				}
			}
		}
	}
	if missing = cli.Partial(gone); !found && missing == nil {
		return nil, nil, fmt.Errorf("topic %s has no channel %s (node at %s)", topic, channel, o.Client.Address)
	}
	slices.SortStableFunc(rows, func(a, b consumerRow) int {
		return cmp.Or(cmp.Compare(a.Hostname, b.Hostname), cmp.Compare(a.RemoteAddress, b.RemoteAddress),
			cmp.Compare(a.Leader, b.Leader))
	})
	return rows, missing, nil
}
