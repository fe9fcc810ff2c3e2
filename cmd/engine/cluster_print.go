package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"penstock/cluster/admin"
)

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func printStatus(w io.Writer, st *admin.Status) error {
	if !st.Joined {
		fmt.Fprintf(w, "node %s has not joined the cluster: what follows may be old\n", st.Node)
	}
	t := table(w)
	fmt.Fprintf(t, "cluster\t%s, revision %d\n", st.Cluster, st.Revision)
	fmt.Fprintf(t, "controller\t%s\n", cmp.Or(st.Controller, "nobody just now"))
	fmt.Fprintf(t, "level\t%s\n", levels(st))
	fmt.Fprintf(t, "topics\t%d with %d partitions\n", st.TopicCount, st.PartitionCount)
	fmt.Fprintf(t, "health\t%s\n", health(st))
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = table(w)
	fmt.Fprintln(t, "NODE\tNUMBER\tSTATE\tDISK\tRACK\tLEADS\tREPLICAS\tIN SYNC\tNSQ\tHTTP\tLOOKUP\tVERSION")
	for _, n := range st.Nodes {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n",
			n.Name, n.ID, nodeState(&n), dash(n.Disk), dash(n.Rack), n.Leaders, n.Replicas, n.InSync, dash(n.NSQ), dash(n.HTTP),
			dash(n.Lookup), dash(n.Version))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return printFaults(w, st.Nodes)
}

// printFaults prints the faults that the nodes have counted since their start, one line for each kind. It prints
// nothing if there are none.
func printFaults(w io.Writer, nodes []admin.Node) error {
	t := table(w)
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
		return fmt.Sprintf("%d, can be raised to %d with engine cluster upgrade when all nodes know it", st.Level, newest)
	}
	return strconv.Itoa(st.Level)
}

// health lists what is wrong, the worst first.
func health(st *admin.Status) string {
	var bad []string
	for _, c := range []struct {
		count int
		text  string
	}{
		{st.Leaderless, "without a live leader"},
		{st.BelowMinISR, "below min_isr: no writes"},
		{st.Damaged, "with a damaged replica"},
		{st.UnderReplicated, "under-replicated"},
		{st.OneRack, "with all replicas in one rack"},
	} {
		if c.count > 0 {
			bad = append(bad, fmt.Sprintf("%d %s", c.count, c.text))
		}
	}
	if len(bad) == 0 {
		return "all partitions are led and in sync"
	}
	return "partitions: " + strings.Join(bad, ", ")
}

func nodeState(n *admin.Node) string {
	state := "dead"
	if n.Live {
		state = "live"
	}
	if n.Draining {
		state += ", draining"
	}
	if n.Controller {
		state += ", controller"
	}
	return state
}

func printTopics(w io.Writer, all *admin.Topics) error {
	t := table(w)
	fmt.Fprintln(t, "TOPIC\tPARTITION\tSTATE\tLEADER\tEPOCH\tREPLICAS\tISR\tMIN ISR\tDAMAGED")
	for _, topic := range all.Topics {
		for _, p := range topic.Partitions {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%s\t%s\t%d\t%s\n",
				topic.Name, p.Partition, partitionState(&p),
				dash(p.Leader), p.Epoch, list(p.Replicas), list(p.ISR), p.MinISR, list(p.Damaged))
		}
	}
	return t.Flush()
}

func partitionState(p *admin.Partition) string {
	state := strings.ReplaceAll(string(p.State), "_", " ")
	if p.OneRack {
		state += ", one rack"
	}
	return state
}

func dash(s string) string       { return cmp.Or(s, "-") }
func list(names []string) string { return dash(strings.Join(names, ",")) }
