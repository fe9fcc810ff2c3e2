package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"penstock/clog"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster/trust"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/internal/server"
	"penstock/internal/server/api"
	"penstock/internal/server/stats"
)

// Command runs a node of the program's version.
func Command(version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: "Run a node. Settings come from flags, PENSTOCK_* environment variables and a TOML file, in this order of\n" +
			"precedence; `penstock config` prints them all. Files of certificates and tokens are read again when they have\n" +
			"changed, and with the settings at SIGHUP and by `penstock reload`, which says what needs a restart. SIGTERM or\n" +
			"SIGINT stops the node after it has answered pending requests. A second signal stops it immediately; nothing\n" +
			"that was answered OK is lost.",
		Args: cobra.NoArgs,
	}
	c := settings.New(cmd.Flags())
	c.Node.Version = version
	cli.CompletesChoices(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.Load(os.Environ()); err != nil {
			return cli.Fail(cli.ExitUsage, err)
		}
		ctx, stop := cli.UntilSignal(cmd.Context())
		defer stop()
		c.Renew(os.Environ())
		return serve(ctx, c, cmd.ErrOrStderr())
	}
	return cmd
}

// serve runs a node until ctx ends, a listener fails, or the embedded etcd member ends by itself.
func serve(ctx context.Context, c *settings.Config, logTo io.Writer) error {
	n := c.Node
	level := new(slog.LevelVar)
	logger := newLogger(logTo, n.LogFormat, n.LogLevel, level)
	n.Engine.Logger = logger
	running := newRunning(c, level, logger)
	for _, w := range c.Warnings {
		logger.Warn(w)
	}
	files := credentialFiles(n)
	trusts, err := judge(c, logger, level)
	if err != nil {
		return err
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // installed before recovery: a SIGHUP during recovery must not end the node

	if err := node.CheckDirectory(n.Engine.DataPath); err != nil {
		return cli.Fail(cli.ExitData, err) // checked before the embedded etcd is started there
	}
	startup, certs := new(health.Startup), certificatesOf(files, logger)
	certs.begin(startup)
	n.Engine.Startup, n.Engine.Certificates = startup, certs.all
	n.NSQ.LookupMayBeBusy = c.Source["lookup-address"] == "default" && c.Source["lookup-tcp-address"] == "default"
	front, err := openFront(n, startup)
	if err != nil {
		return err
	}
	part := newPart(&n.Cluster, trusts, certs)
	defer part.close(logger)
	running.credentials, running.part = watchCredentials(n, files, certs, part, logger), part
	defer running.credentials.lookOn(hangups, certs, running.reload)()
	joined, err := joinable(ctx, n, part, logger)
	if err != nil {
		front.Close()
		return err
	}
	n.Engine.Cluster = joined
	e, err := openEngine(ctx, n)
	if err != nil {
		front.Close()
		return err
	}
	startup.Enter("begins to listen")
	n.NSQ.Front = front
	srv, err := listen(e, c, part, logger, level, running)
	if err != nil {
		front.Close()
		return errors.Join(listenFailure(n, err), e.Close())
	}
	running.serves(e, srv)
	logReady(logger, srv, n)
	notifySystemd(daemon.SdNotifyReady)
	defer startWatchdog(e, logger)()

	failed := make(chan error, 1)
	go func() { failed <- srv.Serve() }()
	var serveErr error
	select {
	case <-ctx.Done():
		logger.Info("stopping: a signal was received")
	case serveErr = <-failed:
		logger.Error("stopping: a listener failed", "error", serveErr)
	case <-part.failed():
		serveErr = part.failure()
		logger.Error("stopping: this node's part of the metadata store failed", "error", serveErr)
	}
	notifySystemd(daemon.SdNotifyStopping)
	return stop(logger, running.Node(), srv, e, serveErr)
}

// judge completes the settings, and judges them and the files that they name, before serve opens anything. It writes
// nothing. It returns by what the nodes of a cluster trust each other, nil for a single node.
func judge(c *settings.Config, logger *slog.Logger, level *slog.LevelVar) (trusts *trust.Trust, err error) {
	n := c.Node
	if n.Engine.Latencies, err = stats.Latencies(n.LatencyPercentiles, n.LatencyWindow); err != nil {
		return nil, cli.Fail(cli.ExitUsage, err)
	}
	if err := checkSecrets(n, credentialFiles(n)); err != nil {
		return nil, cli.Fail(cli.ExitUsage, err)
	}
	if trusts, err = checkTrust(n); err != nil {
		return nil, err
	}
	if err := n.ReadSecretFiles(); err != nil {
		return nil, cli.Fail(cli.ExitUsage, err)
	}
	if err := applyMemory(n, findMemoryLimit("/"), logger); err != nil {
		return nil, err
	}
	return trusts, checkOptions(c, logger, level)
}

// openEngine opens the data directory. The error says with which exit code the process ends.
func openEngine(ctx context.Context, n *settings.Options) (*node.Engine, error) {
	o := n.Engine
	if o.LockWait == 0 {
		o.LockWait = -1 // 0 is the engine's default
	}
	e, err := node.Open(ctx, o)
	switch {
	case errors.Is(err, errs.ErrOptions):
		return nil, cli.Fail(cli.ExitUsage, err)
	case errors.As(err, new(*node.MemoryError)):
		return nil, cli.Fail(cli.ExitMemory, err)
	case errors.Is(err, clog.ErrForgotten):
		return nil, cli.Fail(cli.ExitForgot, fmt.Errorf("%w --data-path %s", err, n.Engine.DataPath))
	case err != nil:
		return nil, cli.Fail(cli.ExitData, err)
	}
	return e, nil
}

// logReady says that clients are served, and where.
func logReady(logger *slog.Logger, srv *server.Server, n *settings.Options) {
	logger.Info("ready", "nsq", addressText(srv.TCPAddr()), "http", addressText(srv.HTTPAddr()),
		"https", addressText(srv.HTTPSAddr()), "lookup", addressText(srv.LookupAddr()),
		"lookup_tcp", addressText(srv.LookupTCPAddr()), "native", addressText(srv.NativeAddr()),
		"data", n.Engine.DataPath, "version", n.Version)
}

// openFront tries all addresses of the node before anything is made in its data directory (O13), and answers the probes
// from then on. A directory that exists may belong to a process that is ending: then its addresses are waited for as
// long as its lock.
func openFront(n *settings.Options, startup *health.Startup) (*server.Front, error) {
	o := n.NSQ
	o.Logger = n.Engine.Logger
	var wait time.Duration
	if _, err := os.Stat(n.Engine.DataPath); err == nil {
		wait = n.Engine.LockWait
	}
	front, err := server.OpenFront(o, n.Engine.NodeID, startup, wait, n.Cluster.Addresses(n.Engine.NodeID)...)
	if err != nil {
		return nil, listenFailure(n, err)
	}
	front.Ports(&n.NSQ)
	return front, nil
}

// nsqOptions returns the options of the server, as far as they come from the settings.
func nsqOptions(c *settings.Config, logger *slog.Logger, level *slog.LevelVar) server.Options {
	o := c.Node.NSQ
	o.Version = NSQVersion(c.Node.Version)
	o.Logger = logger
	o.LogLevel = level
	o.DataPath = c.Node.Engine.DataPath
	if o.BackupPath == "" {
		path, _ := filepath.Abs(o.DataPath) // after an error no backup is below the place
		o.BackupPath = path + "-backups"
	}
	o.DisableSnappy, o.DisableDeflate = !c.Node.Offers.Snappy, !c.Node.Offers.Deflate
	o.Auth.HTTPAddresses = c.Node.Offers.AuthServers
	// A limit that both packages enforce has only one setting.
	o.MaxMessageBytes = c.Node.Engine.MaxMessageBytes
	o.MaxChannelConsumers = c.Node.Engine.MaxConsumers
	o.MaxInflationRatio = c.Node.Engine.MaxInflationRatio
	o.MsgTimeout = c.Node.Engine.MsgTimeout
	o.MaxMsgTimeout = c.Node.Engine.MaxMsgTimeout
	o.MaxReqTimeout = c.Node.Engine.MaxReqTimeout
	o.MaxDefer = c.Node.Engine.MaxDefer
	return o
}

// checkOptions judges all options and the files that they name, before the node takes an address, joins a cluster or
// makes anything in its data directory.
func checkOptions(c *settings.Config, logger *slog.Logger, level *slog.LevelVar) error {
	if err := c.Node.Engine.Check(); err != nil {
		return cli.Fail(cli.ExitUsage, err)
	}
	if err := nsqOptions(c, logger, level).Check(); err != nil {
		return cli.Fail(cli.ExitUsage, err)
	}
	return nil
}

func listen(
	e *node.Engine, c *settings.Config, part *clusterPart, logger *slog.Logger, level *slog.LevelVar,
	running *running,
) (*server.Server, error) {
	o := nsqOptions(c, logger, level)
	o.Reload = func() *api.Reload { return running.reload("POST /reload") }
	o.ConfigValues, o.ConfigList = running.Public, running.List
	o.ClusterHandler = part.handler(c.Node, e)
	srv, err := server.Listen(e, o)
	if part != nil {
		part.server = srv
	}
	return srv, err
}

// stop hands over leaderships, answers pending commands, closes the connections, and then closes the engine. Killing
// the process at any point of this loses nothing that was answered OK.
func stop(logger *slog.Logger, n *settings.Options, srv *server.Server, e *node.Engine, serveErr error) error {
	ctx, cancel := context.WithTimeout(context.Background(), n.ShutdownTimeout)
	defer cancel()
	leaving, cancelLeave := context.WithTimeout(ctx, n.Cluster.LeaveTimeout)
	defer cancelLeave()
	if err := e.Leave(leaving); err != nil {
		logger.Warn("not every partition could be handed over: the others take them over when this node is gone", "error",
			err)
	}
	if err := srv.Shutdown(ctx); err != nil {
		logger.Warn("connections were cut before everything pending was answered", "error", err)
	}
	if err := e.Close(); err != nil {
		return cli.Fail(cli.ExitOther, err)
	}
	if serveErr != nil {
		return cli.Fail(cli.ExitOther, serveErr)
	}
	logger.Info("stopped")
	return nil
}

// NSQVersion is the version that NSQ clients see of a program of this version. Its first part is the version of nsqd
// that Penstock behaves like.
func NSQVersion(version string) string { return "1.3.0+engine." + version }

// addressText returns the address of a listener, or "off".
func addressText(a net.Addr) string {
	if a == nil {
		return server.Off
	}
	return a.String()
}

func newLogger(w io.Writer, format, level string, v *slog.LevelVar) *slog.Logger {
	if err := v.UnmarshalText([]byte(level)); err != nil {
		panic("BUG: log level " + level + " passed the settings table")
	}
	opts := &slog.HandlerOptions{Level: v}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// listenFailure gives a failure to listen its exit code: the cause is either an address, or a setting or a file that a
// setting names.
func listenFailure(n *settings.Options, err error) error {
	if op := new(net.OpError); errors.As(err, &op) {
		return cli.Fail(cli.ExitAddress, addressError(n, err))
	}
	return cli.Fail(cli.ExitUsage, err)
}

// addressFlags are the flags of serve about addresses, by what nsq.ListenFailure says that they are for.
var addressFlags = map[string]string{
	"clients": "--nsq-address", "HTTP": "--http-address", "HTTPS": "--https-address", "lookups": "--lookup-address",
	"registrations": "--lookup-tcp-address", "native clients": "--native-address",
	"other nodes": "--cluster-address (or cluster-peers, whose etcd ports follow it)",
}

// addressFlag names the flag that sets the address of which the error is.
func addressFlag(n *settings.Options, err error) string {
	var failed *server.ListenFailure
	if n.AddressNames == "" && errors.As(err, &failed) {
		return addressFlags[failed.What]
	}
	return cmp.Or(n.AddressNames, "--cluster-address")
}

// addressError turns a listener's error into a sentence for the operator.
func addressError(n *settings.Options, err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Addr == nil {
		return err
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("the address %s is in use by another process: choose another one with %s",
			op.Addr, addressFlag(n, err))
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listening on %s is not permitted: choose a port above 1023 or run with CAP_NET_BIND_SERVICE",
			op.Addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("the address %s does not belong to this machine: choose another one with %s",
			op.Addr, addressFlag(n, err))
	}
	return err
}
