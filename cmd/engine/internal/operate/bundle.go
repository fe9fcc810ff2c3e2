package operate

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/cluster/admin"
)

// Limits of a bundle. A node that hangs may cost maxPartTime for each part; one that does not answer at all costs only
// the first part.
const (
	maxPartBytes   = 64 << 20
	maxPartTime    = 15 * time.Second
	maxProfileTime = time.Minute
)

// BundleManifest is manifest.json of a bundle. The command prints the same with --json.
type BundleManifest struct {
	MadeBy  string       `json:"made_by"` // version of the command
	Began   time.Time    `json:"began"`
	Partial string       `json:"partial,omitempty"` // what is missing
	Nodes   []bundleNode `json:"nodes"`
}

type bundleNode struct {
	Name    string       `json:"name"` // directory in the bundle
	Address string       `json:"address,omitempty"`
	State   string       `json:"state,omitempty"` // as the cluster sees the node
	Error   string       `json:"error,omitempty"` // why nothing of it is here
	Parts   []bundlePart `json:"parts,omitempty"`
}

type bundlePart struct {
	File   string    `json:"file"` // after a failure FILE.error.txt, which has the reason
	Path   string    `json:"path"` // of the request
	At     time.Time `json:"at"`
	TookMs int64     `json:"took_ms"`
	Status int       `json:"status,omitempty"`
	Bytes  int       `json:"bytes"`
	SHA256 string    `json:"sha256,omitempty"`
	Cut    bool      `json:"cut,omitempty"`  // only the beginning is here
	None   bool      `json:"none,omitempty"` // a node of this kind has no such thing
	Error  string    `json:"error,omitempty"`
}

// partAsk is a part to ask a node for.
type partAsk struct {
	file, path string
	query      url.Values
	longer     time.Duration // how long the node itself takes
	anyStatus  bool          // an answer with status 503 is what is wanted, too
	optional   bool          // a single node, or an older one, does not serve it
}

// partsOf lists the parts that a bundle has of a node, the most telling ones first.
func partsOf(profile time.Duration) []partAsk {
	debug := func(what, level string) partAsk {
		return partAsk{file: what + ".txt", path: "/debug/pprof/" + what, query: url.Values{"debug": {level}}}
	}
	parts := []partAsk{
		{file: "info.json", path: "/info"}, // version, kernel, file system
		{file: "readyz.txt", path: "/readyz", query: url.Values{"verbose": {""}}, anyStatus: true},
		{file: "startupz.txt", path: "/startupz", anyStatus: true},
		{file: "health.json", path: "/health", anyStatus: true},
		{file: "stats.json", path: "/stats", query: url.Values{"format": {"json"}}},
		{file: "metrics.txt", path: "/metrics"},
		{
			file: "cluster-status.json", path: "/cluster/status", query: url.Values{"faults": {""}}, optional: true,
		},
		{file: "audit.json", path: "/audit", optional: true},
		{file: "config.json", path: "/config", optional: true},
		debug("goroutine", "2"), debug("mutex", "1"), debug("threadcreate", "1"),
		{file: "heap.pprof", path: "/debug/pprof/heap"},
	}
	if profile > 0 {
		parts = append(parts, partAsk{
			file: "cpu.pprof", path: "/debug/pprof/profile", longer: profile,
			query: url.Values{"seconds": {strconv.Itoa(int(profile / time.Second))}},
		})
	}
	return parts
}

// DebugCommand has the commands of penstock debug below it. version is that of the program.
func DebugCommand(version string) *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Collect what a report about a node needs",
	}
	o.Flags(cmd)
	cmd.AddCommand(o.bundleCommand(version))
	return cmd
}

func (o *operator) bundleCommand(version string) *cobra.Command {
	file, all, profile := "", false, 3*time.Second
	cmd := o.Action("bundle", "Write what is known of a node into one file", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			if profile < 0 || profile > maxProfileTime || profile%time.Second != 0 {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("--cpu-profile is 0 to %v, in whole seconds", maxProfileTime))
			}
			now := time.Now().UTC()
			name := cmp.Or(file, "penstock-bundle-"+now.Format("20060102T150405Z")+".tar.gz")
			return o.bundle(ctx, name, &BundleManifest{MadeBy: version, Began: now}, all, profile)
		})
	cmd.Long = "Write what a node says of itself into one tar.gz, for a report or for whoever looks later: version,\n" +
		"settings, statistics, health, metrics, the cluster's status, the audit trail and profiles. Secrets and\n" +
		"bodies of messages are not in it; names of topics, channels, clients and nodes are. A part that fails has\n" +
		"a file with the reason instead. manifest.json lists all files. The token needs admin on everything.\n" +
		"With --all, all nodes of the cluster are asked, also those that count as dead. The exit code is 11 if\n" +
		"anything is missing."
	cmd.Flags().StringVarP(&file, "output", "o", "",
		"the `FILE` to write; it must not exist; empty means a name with the time")
	cmd.Flags().BoolVar(&all, "all", false, "ask all nodes of the cluster")
	values.DurationVar(cmd.Flags(), &profile, "cpu-profile", profile,
		"how long each node records its use of the CPU; 0 means not")
	return cmd
}

// bundle writes a bundle into a new file. If nothing can be asked, no file is left.
func (o *operator) bundle(ctx context.Context, name string, m *BundleManifest, all bool, profile time.Duration) error {
	nodes, err := o.bundleNodes(ctx, m, all)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return cli.Fail(cli.ExitUsage, fmt.Errorf("the bundle cannot be written: %w", err))
	}
	w := newBundleWriter(f, strings.TrimSuffix(filepath.Base(name), ".tar.gz"))
	for i, c := range nodes {
		w.addNode(ctx, c, &m.Nodes[i], partsOf(profile))
	}
	m.Partial = m.missing()
	w.addJSON("manifest.json", m)
	answered := false
	for i := range m.Nodes {
		answered = answered || m.Nodes[i].Error == ""
	}
	if err := errors.Join(w.close(), f.Close(), ctx.Err()); err != nil || !answered {
		_ = os.Remove(name)
		return cmp.Or(err, errors.New(m.Partial))
	}
	if err := o.showBundle(name, m); err != nil || m.Partial == "" {
		return err
	}
	return cli.Fail(cli.ExitPartial, fmt.Errorf("the bundle is partial: %s", m.Partial))
}

// bundleNodes returns a client for each node that the bundle asks. The client is nil for a node without an address.
func (o *operator) bundleNodes(ctx context.Context, m *BundleManifest, all bool) ([]*client.Client, error) {
	if !all {
		m.Nodes = []bundleNode{{Name: "node", Address: o.Client.Address}}
		return []*client.Client{&o.Client}, nil
	}
	var st admin.Status
	if err := o.Client.Get(ctx, "/cluster/status", nil, &st); err != nil {
		return nil, fmt.Errorf("the nodes of the cluster are not known: %w; without --all only this node is asked", err)
	}
	slices.SortFunc(st.Nodes, func(a, b admin.Node) int { return cmp.Compare(a.Name, b.Name) })
	var clients []*client.Client
	for i := range st.Nodes {
		n := &st.Nodes[i]
		c, err := &o.Client, error(nil)
		if n.Name != st.Node {
			c, err = o.Client.At(n.HTTP, n.HTTPS)
		}
		b := bundleNode{Name: fileName(n.Name), State: cli.NodeState(n)}
		if err != nil {
			b.Error = err.Error()
		} else {
			b.Address = c.Address
		}
		m.Nodes, clients = append(m.Nodes, b), append(clients, c)
	}
	return clients, nil
}

// fileName returns a node's name in a form that is a plain file name everywhere.
func fileName(name string) string {
	return strings.TrimLeft(strings.Map(func(r rune) rune {
		if strings.ContainsRune("-_.", r) || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, name), ".")
}

// missing names the parts that are not in the bundle. It returns "" if all are.
func (m *BundleManifest) missing() string {
	var out []string
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if n.Error != "" {
			out = append(out, fmt.Sprintf("node %s: %s", n.Name, n.Error))
			continue
		}
		var failed []string
		for _, p := range n.Parts {
			if p.Error != "" {
				failed = append(failed, p.File)
			}
		}
		if len(failed) > 0 {
			out = append(out, fmt.Sprintf("node %s: %s failed", n.Name, strings.Join(failed, ", ")))
		}
	}
	return strings.Join(out, "; ")
}

func (o *operator) showBundle(name string, m *BundleManifest) error {
	if o.AsJSON {
		return cli.PrintJSON(o.Out, m)
	}
	fmt.Fprintf(o.Out, "%s is written\n", name)
	t := cli.Table(o.Out)
	fmt.Fprintln(t, "NODE\tPARTS\tBYTES\tMISSING")
	for i := range m.Nodes {
		n := &m.Nodes[i]
		parts, size, failed := 0, 0, n.Error
		for _, p := range n.Parts {
			switch {
			case p.Error != "":
				failed = strings.TrimPrefix(failed+", "+p.File, ", ")
			case !p.None:
				parts, size = parts+1, size+p.Bytes
			}
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", n.Name, parts, size, cli.Dash(failed))
	}
	return t.Flush()
}

// bundleWriter writes files into a tar.gz, below one directory. It remembers the first error.
type bundleWriter struct {
	dir string
	zip *gzip.Writer
	tar *tar.Writer
	err error
}

func newBundleWriter(to io.Writer, dir string) *bundleWriter {
	zip := gzip.NewWriter(to)
	return &bundleWriter{dir: dir, zip: zip, tar: tar.NewWriter(zip)}
}

func (w *bundleWriter) add(name string, data []byte) {
	if w.err != nil {
		return
	}
	h := &tar.Header{Name: w.dir + "/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}
	if w.err = w.tar.WriteHeader(h); w.err == nil {
		_, w.err = w.tar.Write(data)
	}
}

func (w *bundleWriter) addJSON(name string, v any) {
	var b bytes.Buffer
	if err := cli.PrintJSON(&b, v); err != nil {
		w.err = cmp.Or(w.err, err)
		return
	}
	w.add(name, b.Bytes())
}

func (w *bundleWriter) close() error { return errors.Join(w.err, w.tar.Close(), w.zip.Close()) }

// addNode asks a node for all parts, one after the other, and adds what it says. If it does not even accept a
// connection for the first part, it is not asked for the others.
func (w *bundleWriter) addNode(ctx context.Context, c *client.Client, n *bundleNode, parts []partAsk) {
	if n.Error != "" {
		return
	}
	for i, ask := range parts {
		p := bundlePart{File: ask.file, Path: ask.path, At: time.Now().UTC()}
		data, err := p.fetch(ctx, c, ask)
		if i == 0 && (errors.Is(err, client.ErrNoAnswer) || errors.Is(err, client.ErrUsage)) {
			n.Error = err.Error()
			return
		}
		w.addPart(n, p, data, err)
	}
}

// addPart adds a part to the bundle and to the list of the node.
func (w *bundleWriter) addPart(n *bundleNode, p bundlePart, data []byte, err error) {
	p.TookMs = time.Since(p.At).Milliseconds()
	switch {
	case p.None:
	case err != nil:
		p.Error = err.Error()
		w.add(n.Name+"/"+p.File+".error.txt", []byte(p.Error+"\n"))
	default:
		sum := sha256.Sum256(data)
		p.Bytes, p.SHA256 = len(data), hex.EncodeToString(sum[:])
		w.add(n.Name+"/"+p.File, data)
	}
	n.Parts = append(n.Parts, p)
}

// fetch asks a node for one part.
func (p *bundlePart) fetch(ctx context.Context, c *client.Client, ask partAsk) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPartTime+ask.longer)
	defer cancel()
	status, data, err := c.Fetch(ctx, ask.path, ask.query, maxPartBytes+1)
	if err != nil {
		return nil, err
	}
	p.Status = status
	switch {
	case status == http.StatusOK, ask.anyStatus && status == http.StatusServiceUnavailable:
	case status == http.StatusNotFound && ask.optional:
		p.None = true
		return nil, nil
	default:
		return nil, fmt.Errorf("the node answers with status %d: %s", status, bytes.TrimSpace(data[:min(len(data), 500)]))
	}
	if len(data) > maxPartBytes {
		p.Cut, data = true, data[:maxPartBytes]
	}
	return data, nil
}
