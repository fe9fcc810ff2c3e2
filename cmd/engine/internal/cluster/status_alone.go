package cluster

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node"
)

// aloneStatus is what status prints of a single node.
type aloneStatus struct {
	Node    string       `json:"node"` // "": the node has no name
	Version string       `json:"version"`
	Topics  int          `json:"topics"`
	Healthy bool         `json:"healthy"`
	Health  string       `json:"health"`
	Reasons []string     `json:"reasons"`
	Faults  []node.Fault `json:"faults"`
}

// statusAlone is status of a node that is in no cluster.
func (o *operator) statusAlone(ctx context.Context) error {
	v, err := o.Client.Health(ctx)
	if err != nil {
		return err
	}
	var stats struct {
		Version string            `json:"version"`
		Topics  []struct{}        `json:"topics"`
		Storage node.StorageStats `json:"storage"`
	}
	q := url.Values{"format": {"json"}, "include_clients": {"false"}, "include_mem": {"false"}}
	if err := o.Client.Get(ctx, "/stats", q, &stats); err != nil {
		return err
	}
	st := &aloneStatus{
		Node: v.Node, Version: stats.Version, Topics: len(stats.Topics), Healthy: v.Healthy, Health: v.Health,
		Reasons: v.Reasons, Faults: stats.Storage.Faults(),
	}
	if err := o.Print(st, st.print); err != nil || st.Healthy {
		return err
	}
	return cli.Fail(cli.ExitUnhealthy, nil)
}

func (st *aloneStatus) print(w io.Writer) error {
	t := cli.Table(w)
	fmt.Fprintf(t, "node\t%s, in no cluster\n", cli.Dash(st.Node))
	fmt.Fprintf(t, "version\t%s\n", st.Version)
	fmt.Fprintf(t, "topics\t%d\n", st.Topics)
	fmt.Fprintf(t, "health\t%s\n", st.Health)
	if err := t.Flush(); err != nil || len(st.Faults) == 0 {
		return err
	}
	t = cli.Table(w)
	fmt.Fprintln(t, "\nCOUNT\tSINCE ITS START, OR NOW")
	for _, f := range st.Faults {
		fmt.Fprintf(t, "%d\t%s: %s\n", f.Count, strings.ReplaceAll(f.Name, "_", " "), f.Words)
	}
	return t.Flush()
}
