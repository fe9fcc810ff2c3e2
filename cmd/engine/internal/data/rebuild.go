package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster"
	"penstock/internal/cluster/etcd"
	"penstock/internal/node/backup"
	"penstock/internal/node/datadir"
	"penstock/internal/node/offline"
)

// RebuildCommand rebuilds the metadata of a cluster from the data directories of its stopped nodes.
func RebuildCommand() *cobra.Command {
	r := &rebuilder{operator: new(operator), etcdDirs: map[string]string{}}
	cmd := r.Action("rebuild-cluster DATA_PATH...", "Rebuild a cluster's lost metadata from its nodes' data directories",
		cobra.MinimumNArgs(1), r.run)
	cmd.Long = "Rebuild the metadata of a cluster whose etcd has lost its majority for good, from the data directories\n" +
		"of its stopped nodes: after disks have failed, or after penstock restore made the directories of backups. Stop\n" +
		"all nodes, and name every directory of which anything is there. The node of the first one begins the cluster\n" +
		"anew: it must be one that runs etcd. Of a node on another machine, name a directory with copies of its\n" +
		"node.json and its etcd directory or cluster.json; the command says what to run on that machine.\n" +
		"The newest metadata that are in any of the directories are taken. Before anything is changed, the command says\n" +
		"what each node contributes, and asks. Messages are neither copied nor removed: each copy of a partition\n" +
		"compares itself with those of all named nodes before one leads, and the longest leads. The old files of etcd\n" +
		"are kept. An interrupted run is finished by running the command again."
	cmd.Flags().StringToStringVar(&r.etcdDirs, "etcd-data-path", nil,
		"NODE=DIR,... of nodes whose embedded etcd is not in etcd in the data directory")
	cmd.Flags().BoolVar(&r.rejoin, "rejoin", false,
		"on the machine of a node that is not the first one, after the command ran there, or of a node whose etcd is "+
			"damaged while a majority of the others runs: set its old etcd aside")
	cmd.Flags().BoolVar(&r.dry, "dry-run", false, "only say what each node contributes, and change nothing")
	cmd.Flags().BoolVar(&r.yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&r.AsJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	return cmd
}

// rebuilder runs penstock rebuild-cluster.
type rebuilder struct {
	*operator
	etcdDirs         map[string]string // by node
	dry, yes, rejoin bool
}

// rebuildNode is one of the named directories.
type rebuildNode struct {
	*offline.Dir
	etcd   string          // the directory of its etcd
	export *cluster.Export // its newest metadata; nil: it has none
	source string          // of export, in words
	noEtcd string          // why its etcd says nothing, if that is odd
	copies []offline.Copy
	odd    string // what is wrong with its commit log
}

func (r *rebuilder) run(ctx context.Context, paths []string) (err error) {
	nodes, err := r.open(ctx, paths)
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, n.Close())
		}
	}()
	if err != nil {
		return cli.Fail(cli.ExitData, err)
	}
	newest, err := newestExport(nodes)
	if err != nil && !r.rejoin {
		return cli.Fail(cli.ExitData, err)
	}
	plan, err := r.plan(nodes, newest)
	if err != nil {
		return cli.Fail(cli.ExitData, err)
	}
	if !r.AsJSON {
		if err := plan.print(r.Out); err != nil {
			return err
		}
	}
	if !r.dry {
		if err := r.confirm(nodes[0].NodeID); err != nil {
			return err
		}
		if plan.Kept, err = r.apply(nodes, newest); err != nil {
			return cli.Fail(cli.ExitData, fmt.Errorf("%w; run the command again to finish what it began", err))
		}
		plan.Done = true
	}
	if r.AsJSON {
		return cli.PrintJSON(r.Out, plan)
	}
	return plan.printEnd(r.Out)
}

// open takes the locks of all directories and reads them. It refuses what does not belong together. The caller closes
// what it returns, after an error, too.
func (r *rebuilder) open(ctx context.Context, paths []string) (nodes []*rebuildNode, err error) {
	for _, path := range paths {
		path = filepath.Clean(path)
		s, err := offline.Open(path)
		if err != nil {
			return nodes, err
		}
		n := &rebuildNode{Dir: s, etcd: cmp.Or(r.etcdDirs[s.NodeID], filepath.Join(path, "etcd"))}
		nodes = append(nodes, n)
		if err := fits(n, nodes[:len(nodes)-1]); err != nil {
			return nodes, err
		}
	}
	for name := range r.etcdDirs {
		if !slices.ContainsFunc(nodes, func(n *rebuildNode) bool { return n.NodeID == name }) {
			return nodes, fmt.Errorf("--etcd-data-path names node %s, whose data directory is not named: nothing was changed",
				name)
		}
	}
	switch {
	case r.rejoin && len(nodes) > 1:
		return nodes, errors.New("--rejoin is for one data directory, on its own machine: nothing was changed")
	case nodes[0].Partial:
		return nodes, fmt.Errorf("%s has only a part of the data directory of node %s, which cannot begin the cluster anew: "+
			"nothing was changed; run the command on the machine of a node that runs etcd, and name its data directory first",
			nodes[0].Path, nodes[0].NodeID)
	}
	for _, n := range nodes {
		if n.copies, n.odd, err = n.Copies(); err != nil {
			return nodes, err
		}
		if err := n.readMetadata(ctx); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// fits refuses a directory that does not belong to the others.
func fits(n *rebuildNode, others []*rebuildNode) error {
	if n.Cluster == uuid.Nil {
		return fmt.Errorf("%s belongs to a single node, which has no cluster's metadata: nothing was changed; name only "+
			"data directories of one cluster's nodes", n.Path)
	}
	for _, o := range others {
		switch {
		case o.Cluster != n.Cluster:
			return fmt.Errorf("%s and %s belong to nodes of two clusters: nothing was changed; name only data directories of "+
				"one cluster's nodes", o.Path, n.Path)
		case o.NodeID == n.NodeID:
			return fmt.Errorf("%s and %s both belong to node %s: nothing was changed; name one data directory of each node",
				o.Path, n.Path, n.NodeID)
		}
	}
	return nil
}

// readMetadata finds the newest metadata of the directory: of its etcd, or left by penstock restore or an earlier run.
// It changes nothing but a copy of etcd, which it removes.
func (n *rebuildNode) readMetadata(ctx context.Context) error {
	data, err := n.ReadFile(cluster.ExportFile, backup.MaxMetadataBytes)
	if err != nil {
		return err
	}
	if data != nil {
		e, err := cluster.ReadExport(data)
		switch {
		case err != nil:
			return fmt.Errorf("%s of %s is damaged: nothing was changed; move it away, and run the command again: %w",
				cluster.ExportFile, n.Path, err)
		case e.Cluster != n.Cluster:
			return fmt.Errorf("%s of %s is of another cluster: nothing was changed; move it away, and run the command again",
				cluster.ExportFile, n.Path)
		}
		n.export, n.source = e, cluster.ExportFile
	}
	scratch := filepath.Join(n.Path, "etcd.copy")
	if err := os.RemoveAll(scratch); err != nil { // an earlier run was killed
		return fmt.Errorf("%s: a copy of its etcd cannot be made: nothing was changed: %w", n.Path, err)
	}
	e, err := etcdExport(ctx, n.etcd, scratch, n.Cluster)
	if err != nil && !(errors.Is(err, errNoEtcd) && n.export != nil) {
		n.noEtcd = err.Error()
	}
	if e != nil && (n.export == nil || e.Newer(n.export)) {
		n.export, n.source = e, "its etcd"
	}
	return nil
}

// errNoEtcd says that a directory has no embedded etcd.
var errNoEtcd = errors.New("there is no embedded etcd")

// etcdExport returns the metadata of a cluster that the embedded etcd of a stopped node knows.
func etcdExport(ctx context.Context, etcdDir, scratch string, id uuid.UUID) (*cluster.Export, error) {
	written := etcd.LastWritten(etcdDir)
	if written.IsZero() {
		return nil, fmt.Errorf("%w in %s", errNoEtcd, etcdDir)
	}
	entries, revision, err := etcd.ReadStopped(ctx, etcdDir, scratch, settings.KeyPrefix(""))
	if err != nil {
		return nil, fmt.Errorf("the embedded etcd in %s cannot be read: %w", etcdDir, err)
	}
	for _, e := range entries {
		prefix, found := strings.CutSuffix(e.Key, "/cluster")
		if found && string(e.Value) == `"`+id.String()+`"` {
			return cluster.ExportOf(entries, prefix+"/", revision, written)
		}
	}
	return nil, fmt.Errorf("the embedded etcd in %s knows nothing of the cluster %s", etcdDir, id)
}

// newestExport returns the newest metadata of all directories.
func newestExport(nodes []*rebuildNode) (newest *cluster.Export, err error) {
	var why []string
	for _, n := range nodes {
		if n.export == nil {
			why = append(why, "node "+n.NodeID+": "+n.noEtcd)
		} else if newest == nil || n.export.Newer(newest) {
			newest = n.export
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("none of the directories has the cluster's metadata (%s): nothing was changed; name the "+
			"directories of more nodes, or copy the %s of a backup into one of them", strings.Join(why, "; "),
			cluster.ExportFile)
	}
	return newest, nil
}

// confirm asks for confirmation. Without a terminal it refuses: then --yes is required.
func (r *rebuilder) confirm(first string) error {
	if r.yes {
		return nil
	}
	what, advice := "begins the cluster's metadata anew", "If a majority of the nodes that run etcd can still start with "+
		"their disks, start them\ninstead.\n"
	if r.rejoin {
		what, advice = "sets the etcd of node "+first+" aside", "The node gets its part of the metadata from the others "+
			"then: a majority of them must run.\n"
	}
	if !cli.IsTerminal(r.In) {
		return cli.Fail(cli.ExitUsage, fmt.Errorf("rebuild-cluster %s and asks before it does: say --yes where nobody can "+
			"answer; nothing was changed", what))
	}
	fmt.Fprintf(r.Prompt, "%sType the name of the first node, %s, to continue: ", advice, first)
	return cli.Typed(r.In, first, "nothing was changed")
}

// apply changes the directories, and returns where the old files of etcd are kept. After a crash between any two steps
// the metadata are still found, so that another run can do all of it again, and a node that is started meanwhile does
// no harm:
//
//	1 the newest metadata are in the first directory    a file that a node does not read
//	2 no other directory is to begin a cluster          what an earlier run, with another first node, had left
//	3 every copy is listed as shortened, and every
//	  directory has the mark of these metadata          a copy compares itself once more
//	4 the first directory is to begin the cluster       its node refuses to start while it has the old etcd
//	5 the old etcd of the others is set aside           they wait for the first node
//	6 the old etcd of the first is set aside            its node begins the cluster
func (r *rebuilder) apply(nodes []*rebuildNode, newest *cluster.Export) (kept []string, err error) {
	first := nodes[0]
	if r.rejoin {
		if err := first.RemoveFile(cluster.SeedFile); err != nil {
			return nil, err
		}
		_, err = first.Distrust(first.copies)
		return first.setAside(kept, err)
	}
	if err := writeExport(first, newest); err != nil {
		return nil, err
	}
	whole := slices.DeleteFunc(slices.Clone(nodes), func(n *rebuildNode) bool { return n.Partial })
	for _, n := range whole[1:] {
		if err := n.RemoveFile(cluster.SeedFile); err != nil {
			return nil, err
		}
	}
	mark, err := datadir.SealFile(cluster.MarkOf(newest))
	if err != nil {
		return nil, err
	}
	for _, n := range whole {
		if _, err := n.Distrust(n.copies); err != nil {
			return nil, err
		}
		if err := n.WriteFile(cluster.MarkFile, mark); err != nil {
			return nil, err
		}
	}
	if err := writeSeed(nodes, newest); err != nil {
		return nil, err
	}
	for _, n := range append(slices.Clone(whole[1:]), first) {
		if kept, err = n.setAside(kept, nil); err != nil {
			return kept, err
		}
	}
	return kept, nil
}

// setAside sets the old etcd of a node aside, unless err says that something before went wrong.
func (n *rebuildNode) setAside(kept []string, err error) ([]string, error) {
	if err != nil {
		return kept, err
	}
	to, err := etcd.SetAside(n.etcd)
	if to != "" {
		kept = append(kept, to)
	}
	return kept, err
}

func writeExport(n *rebuildNode, e *cluster.Export) error {
	data, err := e.Encode()
	if err != nil {
		return err
	}
	return n.WriteFile(cluster.ExportFile, data)
}

// writeSeed notes in the first directory that its node begins the metadata store anew.
func writeSeed(nodes []*rebuildNode, newest *cluster.Export) error {
	stores := map[string]uuid.UUID{}
	for _, n := range nodes {
		stores[n.NodeID] = n.StoreID
	}
	seed := *newest
	var err error
	if seed.Rows, err = newest.Revive(stores); err != nil {
		return err
	}
	data, err := datadir.SealFile(&seed)
	if err != nil {
		return err
	}
	return nodes[0].WriteFile(cluster.SeedFile, data)
}

// stoppedMetadata adds to the backup of a stopped node what its directory knows of the cluster's metadata. It says why
// it cannot.
func stoppedMetadata(ctx context.Context, from, etcdDir, to string, m *backup.Manifest, w *backup.Writer) error {
	if m.Cluster == uuid.Nil {
		return nil
	}
	export, err := etcdExport(ctx, etcdDir, to+".etcd", m.Cluster)
	data, fileErr := os.ReadFile(filepath.Join(from, cluster.ExportFile))
	if fileErr == nil {
		left, readErr := cluster.ReadExport(data)
		if readErr == nil && left.Cluster == m.Cluster && (export == nil || left.Newer(export)) {
			export, err = left, nil
		}
	} else if !errors.Is(fileErr, fs.ErrNotExist) && err != nil {
		err = errors.Join(err, fileErr)
	}
	if err != nil {
		return err
	}
	if data, err = export.Encode(); err != nil {
		return err
	}
	return w.Write(backup.MetadataFile, data)
}
