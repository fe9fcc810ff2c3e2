package cluster

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
	"penstock/internal/meta"
	"penstock/internal/node/health"
)

var nodeColumns = []cli.Column[admin.Node]{
	cli.TextCol("NODE", 0, func(n *admin.Node) string { return n.Name }),
	cli.Col("NUMBER", 9, func(n *admin.Node) string { return fmt.Sprint(n.ID) }),
	cli.Col("STATE", 0, func(n *admin.Node) string { return cli.NodeState(n) }),
	cli.Col("DISK", 0, func(n *admin.Node) string { return cli.Dash(diskState(n)) }),
	cli.TextCol("RACK", 5, func(n *admin.Node) string { return cli.Dash(n.Rack) }),
	cli.Col("LEADS", 2, func(n *admin.Node) string { return fmt.Sprint(n.Leaders) }),
	cli.Col("REPLICAS", 4, func(n *admin.Node) string { return fmt.Sprint(n.Replicas) }),
	cli.Col("IN SYNC", 1, func(n *admin.Node) string { return fmt.Sprint(n.InSync) }),
	cli.TextCol("NOT WHOLE", 0, func(n *admin.Node) string { return cli.Dash(notWhole(n)) }),
	cli.Col("NSQ", 7, func(n *admin.Node) string { return cli.Dash(n.NSQ) }),
	cli.Col("HTTP", 3, func(n *admin.Node) string { return cli.Dash(n.HTTP) }),
	cli.Col("LOOKUP", 8, func(n *admin.Node) string { return cli.Dash(n.Lookup) }),
	cli.Col("VERSION", 6, func(n *admin.Node) string { return cli.Dash(n.Version) }),
}

// PrintStatus prints the status of a cluster and of its nodes.
func PrintStatus(w io.Writer, st *admin.Status) error {
	if !st.Joined {
		fmt.Fprintf(w, "node %s is no live member of the cluster: what follows may be old\n", st.Node)
	}
	t := cli.Table(w)
	fmt.Fprintf(t, "cluster\t%s, revision %d\n", st.Cluster, st.Revision)
	fmt.Fprintf(t, "controller\t%s\n", cmp.Or(st.Controller, "nobody just now"))
	fmt.Fprintf(t, "level\t%s\n", levels(st))
	fmt.Fprintf(t, "topics\t%d with %s\n", st.TopicCount, cli.Counted(st.PartitionCount, "partition"))
	fmt.Fprintf(t, "as of\t%s\n", asOf(st.Node, st.AgeMs))
	fmt.Fprintf(t, "health\t%s\n", st.Health)
	if st.OneRack > 0 {
		fmt.Fprintf(t, "racks\tpartitions: %d with all replicas in one rack\n", st.OneRack)
	}
	if r := &st.Rebalance; r.State != admin.RebalanceIdle && r.State != "" || r.MoveCount > 0 || r.Gone != "" {
		fmt.Fprintf(t, "rebalance\t%s\n", rebalancing(r))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := cli.WriteFitting(w, nodeColumns, st.Nodes, cli.TerminalWidth(w)); err != nil {
		return err
	}
	return printFaults(w, st.Nodes)
}

// printFaults prints the faults that the nodes have counted since their start, one line for each kind. It prints
// nothing if there are none.
func printFaults(w io.Writer, nodes []admin.Node) error {
	t := cli.Table(w)
	header := "\nNODE\tCOUNT\tSINCE ITS START, OR NOW\n"
	for _, n := range nodes {
		for _, f := range n.Faults {
			fmt.Fprintf(t, "%s%s\t%d\t%s: %s\n", header, n.Name, f.Count, strings.ReplaceAll(f.Name, "_", " "), f.Words)
			header = ""
		}
		if n.NoFaults != "" {
			fmt.Fprintf(t, "%s%s\t-\tdoes not say what it met: %s\n", header, n.Name, n.NoFaults)
			header = ""
		}
	}
	return t.Flush()
}

// levels describes the feature level, and the nodes that hold up a raise.
func levels(st *admin.Status) string {
	newest, late := st.Level, []string(nil)
	for _, n := range st.Nodes {
		newest = max(newest, n.Level)
		if n.StoreLevel < st.WantedLevel {
			late = append(late, n.Name)
		}
	}
	switch {
	case st.WantedLevel > st.Level && len(late) > 0:
		return fmt.Sprintf("%d, being raised to %d: waits for %s", st.Level, st.WantedLevel, strings.Join(late, ", "))
	case st.WantedLevel > st.Level:
		return fmt.Sprintf("%d, being raised to %d", st.Level, st.WantedLevel)
	case newest > st.Level:
		return fmt.Sprintf("%d, can be raised to %d with penstock cluster upgrade when all nodes know it", st.Level, newest)
	}
	return strconv.Itoa(st.Level)
}

// asOf says how old the rows of the metadata store are.
func asOf(node string, ageMs int64) string {
	return fmt.Sprintf("%s ago, when the metadata store last answered node %s", health.Age(millis(ageMs)), node)
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// diskState is what is known of a node's disk. That it was good when its process ended says nothing about it now.
func diskState(n *admin.Node) string {
	dead := n.Presence == health.Dead || n.Presence == "" && !n.Live
	if dead && n.Disk == meta.DiskGood.String() {
		return ""
	}
	return n.Disk
}

// notWhole counts the copies on a node that are not whole, by their states. A copy may be in several.
func notWhole(n *admin.Node) string {
	var states []string
	for _, s := range []struct {
		count int
		name  string
	}{{n.Damaged, "damaged"}, {n.Contested, "contested"}, {n.Short, "short"}, {n.Shortened, "shortened"}} {
		if s.count > 0 {
			states = append(states, fmt.Sprintf("%d %s", s.count, s.name))
		}
	}
	return strings.Join(states, ", ")
}

// PrintTopics prints where the partitions are.
func PrintTopics(w io.Writer, all *admin.Topics) error {
	fmt.Fprintf(w, "as of %s\n", health.Age(millis(all.AgeMs))+" ago")
	t := cli.Table(w)
	fmt.Fprintln(t, "TOPIC\tPARTITION\tSTATE\tLEADER\tEPOCH\tREPLICAS\tISR\tMIN ISR\tNOT WHOLE")
	for _, topic := range all.Topics {
		for _, p := range topic.Partitions {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%s\t%s\t%d\t%s\n",
				topic.Name, p.Partition, partitionState(&p),
				cli.Dash(p.Leader), p.Epoch, list(p.Replicas), list(p.ISR), p.MinISR, cli.Dash(copiesNotWhole(&p)))
		}
	}
	return t.Flush()
}

// copiesNotWhole names the nodes whose copies of a partition are not whole, each with its state.
func copiesNotWhole(p *admin.Partition) string {
	var states []string
	for _, s := range []struct {
		nodes []string
		name  string
	}{{p.Damaged, "damaged"}, {p.Contested, "contested"}, {p.Short, "short"}, {p.Shortened, "shortened"}} {
		for _, n := range s.nodes {
			states = append(states, n+" "+s.name)
		}
	}
	return strings.Join(states, ", ")
}

func partitionState(p *admin.Partition) string {
	state := strings.ReplaceAll(string(p.State), "_", " ")
	if p.OneRack {
		state += ", one rack"
	}
	return state
}

func list(names []string) string { return cli.Dash(strings.Join(names, ",")) }
