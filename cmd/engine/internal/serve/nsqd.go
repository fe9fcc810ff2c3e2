package serve

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/migrate"
	"penstock/internal/server"
)

const (
	nsqdName = "nsqd"
	// nsqdDirectory is the node's directory below nsqd's --data-path. nsqd's own files beside it are left unchanged.
	nsqdDirectory = "penstock"
)

// NSQDCommand runs a node of the program's version with nsqd's command line.
func NSQDCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   nsqdName,
		Short: "Run a node with nsqd's command line",
		Long: "Run a node that accepts the command line and the configuration file of nsqd 1.3.0. This program does the\n" +
			"same when it is started through a link named nsqd. The data is in " + nsqdDirectory + " below nsqd's --data-path.",
		DisableFlagParsing: true, // nsqd's flags may have one dash or two
		RunE: func(cmd *cobra.Command, args []string) error {
			return runNSQD(cmd.Context(), version, args, os.Environ(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// CommandLine returns the program's arguments. If the program's name is nsqd, it adds the command nsqd.
func CommandLine(argv []string) []string {
	if filepath.Base(argv[0]) == nsqdName {
		return append([]string{nsqdName}, argv[1:]...)
	}
	return argv[1:]
}

func runNSQD(
	parent context.Context, version string, args, environ []string, stdout, stderr io.Writer,
) error {
	n := newNSQDLine()
	if err := n.parse(args, stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return cli.Fail(cli.ExitUsage, err)
	}
	if n.version {
		_, err := fmt.Fprintf(stdout, "%s v%s (built w/%s)\n", nsqdName, NSQVersion(version), runtime.Version())
		return err
	}
	c, err := n.config(environ)
	if err != nil {
		return cli.Fail(cli.ExitUsage, err)
	}
	c.Node.Version = version
	c.Again = func() (*settings.Config, error) {
		n := newNSQDLine()
		if err := n.parse(args, io.Discard); err != nil {
			return nil, err
		}
		return n.config(environ)
	}
	logger := newLogger(stderr, c.Node.LogFormat, c.Node.LogLevel, new(slog.LevelVar))
	if text := n.warning(); text != "" {
		logger.Warn(text)
	}
	if len(n.exposed) > 0 { // nsqd has no better place for it on a command line, so it works all the same
		logger.Warn("everybody on this machine can read the secret in a flag, for example with ps: put it into the file of "+
			"-config", "flags", strings.Join(n.exposed, ", "))
	}
	sayUnimported(logger, filepath.Dir(c.Node.Engine.DataPath), c.Node.Engine.DataPath)
	ctx, stop := cli.UntilSignal(parent)
	defer stop()
	return serve(ctx, c, stderr)
}

// sayUnimported logs how to import the data that an nsqd has left in the directory, unless they were imported.
func sayUnimported(logger *slog.Logger, nsqdPath, dataPath string) {
	if _, err := os.Stat(filepath.Join(nsqdPath, "nsqd.dat")); err != nil {
		return
	}
	path, err := filepath.Abs(nsqdPath)
	if err != nil {
		return
	}
	state, err := migrate.LoadState(filepath.Join(dataPath, migrate.StateFile))
	if err != nil || state.Imported(path) {
		return
	}
	logger.Warn("the directory has the data of an nsqd, which is left as it is and is not served; to import it, stop "+
		"this node and run the command",
		"command", fmt.Sprintf("penstock migrate nsqd --data-path %s --to %s", nsqdPath, dataPath))
}

// nsqdLine is nsqd's command line and configuration file, as parsed.
type nsqdLine struct {
	flags   []*nsqdFlag
	version bool
	file    string

	useless []string // flags, keys and arguments that have no effect here
	exposed []string // flags that show a secret to everybody on this machine
}

func newNSQDLine() *nsqdLine { return &nsqdLine{flags: nsqdFlags()} }

// parse parses the arguments with the same package as nsqd, so that both understand them alike.
func (n *nsqdLine) parse(args []string, usage io.Writer) error {
	set := flag.NewFlagSet(nsqdName, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.BoolVar(&n.version, "version", false, "print the version")
	set.StringVar(&n.file, "config", "", "nsqd's TOML configuration file")
	known := settings.Table(new(settings.Options))
	for _, f := range n.flags {
		set.Var(f, f.name, f.usage(known))
	}
	err := set.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(usage, "Usage of %s:\n", nsqdName)
		set.SetOutput(usage)
		set.PrintDefaults()
	}
	if rest := set.Args(); err == nil && len(rest) > 0 {
		n.useless = append(n.useless, fmt.Sprintf("the arguments %q", rest)) // nsqd ignores them as well
	}
	return err
}

// config returns the settings of this program. From lowest to highest precedence they come from the defaults,
// PENSTOCK_* variables, nsqd's file and nsqd's flags.
func (n *nsqdLine) config(environ []string) (*settings.Config, error) {
	c := settings.New(pflag.NewFlagSet(nsqdName, pflag.ContinueOnError))
	c.Node.AddressNames = "--tcp-address, --http-address or --https-address, or in the environment with " +
		"PENSTOCK_NATIVE_ADDRESS, PENSTOCK_LOOKUP_ADDRESS, PENSTOCK_LOOKUP_TCP_ADDRESS or PENSTOCK_CLUSTER_ADDRESS"
	if err := n.presets(c); err != nil {
		return nil, err
	}
	if err := c.Load(environ); err != nil {
		return nil, err
	}
	if n.file != "" {
		if err := n.loadFile(); err != nil {
			return nil, err
		}
	}
	for _, f := range n.flags {
		if f.said == "" && !f.given {
			continue
		}
		used, err := f.apply(c)
		if err != nil {
			return nil, err
		}
		if !used {
			n.useless = append(n.useless, f.source)
		}
		for _, t := range f.targets {
			if s := c.Named(t.setting); f.given && s != nil && values.Conceals(s.Value) {
				n.exposed = append(n.exposed, f.source)
			}
		}
	}
	if err := n.related(c); err != nil {
		return nil, err
	}
	c.Node.Engine.DataPath = filepath.Join(c.Node.Engine.DataPath, nsqdDirectory)
	c.Source["data-path"] += ", and " + nsqdDirectory
	return c, nil
}

// presets sets nsqd's defaults where ours differ. nsqd is not an nsqlookupd, and one may be running on the same
// machine.
func (n *nsqdLine) presets(c *settings.Config) error {
	for _, p := range [][2]string{
		{"nsq-address", "0.0.0.0:4150"},
		{"http-address", "0.0.0.0:4151"},
		{"lookup-address", server.Off},
		{"lookup-tcp-address", server.Off},
		{"data-path", "."},
	} {
		if err := c.Set(c.Named(p[0]), p[1], "nsqd's default"); err != nil {
			return err
		}
	}
	return nil
}

// maxNSQDBodyBytes is the highest limit that nsqd's --max-msg-size and --max-body-size can set: the body with its
// framing must fit into the largest batch.
const maxNSQDBodyBytes = 12 << 20

// nsqdMinTLS is the lowest TLS version that clients may speak unless --tls-min-version says it. nsqd's default is 1.0.
// go-nsq, when it is configured by its options, NSQ's tools and pynsq offer 1.2 at most. Native clients and other nodes
// need what penstock serve's default says.
const nsqdMinTLS = "1.2"

// related adjusts settings that depend on several flags.
func (n *nsqdLine) related(c *settings.Config) error {
	o := &c.Node.Engine
	largest := max(o.MaxMessageBytes, c.Node.NSQ.MaxBodyBytes)
	if largest > maxNSQDBodyBytes {
		n.useless = append(n.useless, "sizes above "+values.FormatBytes(maxNSQDBodyBytes))
		o.MaxMessageBytes = min(o.MaxMessageBytes, maxNSQDBodyBytes)
		c.Node.NSQ.MaxBodyBytes = min(c.Node.NSQ.MaxBodyBytes, maxNSQDBodyBytes)
		largest = maxNSQDBodyBytes
	}
	// nsqd accepts these combinations, and this server would refuse to start with them.
	c.Node.NSQ.MaxBodyBytes = max(c.Node.NSQ.MaxBodyBytes, o.MaxMessageBytes)
	c.Node.NSQ.HeartbeatInterval = min(c.Node.NSQ.HeartbeatInterval, c.Node.NSQ.MaxHeartbeatInterval)
	o.MaxBatchBytes = max(o.MaxBatchBytes, largest+largest/5)
	if c.Source["tls-min-version"] == "default" {
		c.Node.NSQ.TLS.NSQMinVersion = nsqdMinTLS
	}
	if s, cert := c.Named("https-address"), c.Named("tls-cert"); s != nil && cert != nil && cert.Value.String() != "" &&
		c.Source[s.Name] == "default" {
		return c.Set(s, "0.0.0.0:4152", "nsqd's default")
	}
	return nil
}

// warning returns one sentence that lists everything without effect, or "".
func (n *nsqdLine) warning() string {
	if len(n.useless) == 0 {
		return ""
	}
	return "known from nsqd, without effect here: " + strings.Join(n.useless, ", ")
}

// loadFile reads nsqd's TOML file. Values from flags remain.
func (n *nsqdLine) loadFile() error {
	file, err := settings.ReadFile(n.file)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(file)) {
		i := slices.IndexFunc(n.flags, func(f *nsqdFlag) bool { return f.key() == key })
		if i < 0 {
			n.useless = append(n.useless, "the key "+key) // nsqd ignores unknown keys
			continue
		}
		f := n.flags[i]
		if f.given {
			continue
		}
		if err := f.setTOML(file[key]); err != nil {
			return fmt.Errorf("the configuration file %s: %s: %w", n.file, key, err)
		}
		f.source = "the key " + key
	}
	return nil
}
