package main

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
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"penstock/internal/node"
	"penstock/internal/node/health"
	"penstock/internal/server"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: "Run a node. Settings come from flags, PENSTOCK_* environment variables and a TOML file, in this order of\n" +
			"precedence; `penstock config` prints them all. Files of certificates and tokens are read again when they have\n" +
			"changed, at SIGHUP, and by `penstock reload`. SIGTERM or SIGINT stops the node after it has answered pending\n" +
			"requests. A second signal stops it immediately; nothing that was answered OK is lost.",
		Args: cobra.NoArgs,
	}
	c := newConfig(cmd.Flags())
	completesChoices(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.load(os.Environ()); err != nil {
			return &exitError{exitUsage, err}
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return serve(ctx, c, cmd.ErrOrStderr())
	}
	return cmd
}

// untilSignal returns a context that ends with the first SIGTERM or SIGINT. The second signal ends the process at once.
// The caller must call the returned function.
func untilSignal(parent context.Context) (context.Context, func()) {
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
			return
		}
		if _, again := <-signals; again {
			os.Exit(exitOther)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
		close(signals)
	}
}

// serve runs a node until ctx ends, a listener fails, or the embedded etcd member ends by itself.
func serve(ctx context.Context, c *config, logTo io.Writer) error {
	n := c.node
	level := new(slog.LevelVar)
	logger := newLogger(logTo, n.logFormat, n.logLevel, level)
	n.engine.Logger = logger
	for _, w := range c.warnings {
		logger.Warn(w)
	}
	files := n.credentialFiles()
	if err := c.judge(logger, level); err != nil {
		return err
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // installed before recovery: a SIGHUP during recovery must not end the node

	if err := node.CheckDirectory(n.engine.DataPath); err != nil {
		return &exitError{exitData, err} // checked before the embedded etcd is started there
	}
	startup, certs := new(health.Startup), certificatesOf(files, logger)
	certs.begin(startup)
	n.cluster.certs = certs
	n.engine.Startup, n.engine.Certificates = startup, certs.all
	n.nsq.LookupMayBeBusy = c.source["lookup-address"] == "default" && c.source["lookup-tcp-address"] == "default"
	front, err := openFront(n, startup)
	if err != nil {
		return err
	}
	part := n.cluster.part()
	defer part.close(logger)
	watched := n.watchCredentials(files, certs, part, logger)
	defer watched.lookOn(hangups, certs)()
	joined, err := joinable(ctx, n, part, logger)
	if err != nil {
		front.Close()
		return err
	}
	n.engine.Cluster = joined
	e, err := openEngine(ctx, n)
	if err != nil {
		front.Close()
		return err
	}
	startup.Enter("begins to listen")
	n.nsq.Front = front
	reload := func() []server.CredentialFile { return watched.look("POST /reload", true) }
	srv, err := listen(e, c, part, logger, level, reload)
	if err != nil {
		front.Close()
		return errors.Join(n.listenFailure(err), e.Close())
	}
	watched.serves(srv)
	logReady(logger, srv, n.engine.DataPath)
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
	return stop(logger, n, srv, e, serveErr)
}

// judge completes the settings, and judges them and the files that they name, before serve opens anything. It writes
// nothing.
func (c *config) judge(logger *slog.Logger, level *slog.LevelVar) (err error) {
	n := c.node
	if n.engine.Latencies, err = server.Latencies(n.latencyPercentiles, n.latencyWindow); err != nil {
		return &exitError{exitUsage, err}
	}
	if err := n.checkSecrets(n.credentialFiles()); err != nil {
		return &exitError{exitUsage, err}
	}
	if err := n.cluster.checkTrust(n); err != nil {
		return err
	}
	if err := n.readSecretFiles(); err != nil {
		return &exitError{exitUsage, err}
	}
	if err := applyMemory(n, findMemoryLimit("/"), logger); err != nil {
		return err
	}
	if err := c.checkOptions(logger, level); err != nil {
		return err
	}
	return nil
}

// openEngine opens the data directory. The error says with which exit code the process ends.
func openEngine(ctx context.Context, n *options) (*node.Engine, error) {
	o := n.engine
	if o.LockWait == 0 {
		o.LockWait = -1 // 0 is the engine's default
	}
	e, err := node.Open(ctx, o)
	switch {
	case errors.Is(err, node.ErrOptions):
		return nil, &exitError{exitUsage, err}
	case errors.As(err, new(*node.MemoryError)):
		return nil, &exitError{exitMemory, err}
	case errors.Is(err, node.ErrForgotten):
		return nil, &exitError{exitForgot, fmt.Errorf("%w --data-path %s", err, n.engine.DataPath)}
	case err != nil:
		return nil, &exitError{exitData, err}
	}
	return e, nil
}

// logReady says that clients are served, and where.
func logReady(logger *slog.Logger, srv *server.Server, dataPath string) {
	logger.Info("ready", "nsq", addressText(srv.TCPAddr()), "http", addressText(srv.HTTPAddr()),
		"https", addressText(srv.HTTPSAddr()), "lookup", addressText(srv.LookupAddr()),
		"lookup_tcp", addressText(srv.LookupTCPAddr()), "native", addressText(srv.NativeAddr()),
		"data", dataPath, "version", version)
}

// openFront tries all addresses of the node before anything is made in its data directory (O13), and answers the probes
// from then on. A directory that exists may belong to a process that is ending: then its addresses are waited for as
// long as its lock.
func openFront(n *options, startup *health.Startup) (*server.Front, error) {
	o := n.nsq
	o.Logger = n.engine.Logger
	var wait time.Duration
	if _, err := os.Stat(n.engine.DataPath); err == nil {
		wait = n.engine.LockWait
	}
	front, err := server.OpenFront(o, n.engine.NodeID, startup, wait, n.cluster.addresses(n.engine.NodeID)...)
	if err != nil {
		return nil, n.listenFailure(err)
	}
	front.Ports(&n.nsq)
	return front, nil
}

// public is lookup without the settings that must not leave the process.
func (c *config) public(key string) (any, bool) {
	if s := c.named(strings.ReplaceAll(key, "_", "-")); s != nil && s.secret {
		return nil, false
	}
	return c.lookup(key)
}

// nsqOptions returns the options of the server, as far as they come from the settings.
func (c *config) nsqOptions(logger *slog.Logger, level *slog.LevelVar) server.Options {
	o := c.node.nsq
	o.Version = nsqVersion
	o.Logger = logger
	o.LogLevel = level
	o.ConfigValues = c.public
	o.DataPath = c.node.engine.DataPath
	if o.BackupPath == "" {
		path, _ := filepath.Abs(o.DataPath) // after an error no backup is below the place
		o.BackupPath = path + "-backups"
	}
	o.DisableSnappy, o.DisableDeflate = !c.node.offers.snappy, !c.node.offers.deflate
	o.Auth.HTTPAddresses = c.node.offers.authServers
	// A limit that both packages enforce has only one setting.
	o.MaxMessageBytes = c.node.engine.MaxMessageBytes
	o.MaxInflationRatio = c.node.engine.MaxInflationRatio
	o.MsgTimeout = c.node.engine.MsgTimeout
	o.MaxMsgTimeout = c.node.engine.MaxMsgTimeout
	o.MaxReqTimeout = c.node.engine.MaxReqTimeout
	o.MaxDefer = c.node.engine.MaxDefer
	return o
}

// checkOptions judges all options and the files that they name, before the node takes an address, joins a cluster or
// makes anything in its data directory.
func (c *config) checkOptions(logger *slog.Logger, level *slog.LevelVar) error {
	if err := c.node.engine.Check(); err != nil {
		return &exitError{exitUsage, err}
	}
	if err := c.nsqOptions(logger, level).Check(); err != nil {
		return &exitError{exitUsage, err}
	}
	return nil
}

func listen(
	e *node.Engine, c *config, part *clusterPart, logger *slog.Logger, level *slog.LevelVar,
	reload func() []server.CredentialFile,
) (*server.Server, error) {
	o := c.nsqOptions(logger, level)
	o.Reload = reload
	o.ClusterHandler = part.handler(c.node, e, logger)
	srv, err := server.Listen(e, o)
	if part != nil {
		part.server = srv
	}
	return srv, err
}

// stop hands over leaderships, answers pending commands, closes the connections, and then closes the engine. Killing
// the process at any point of this loses nothing that was answered OK.
func stop(logger *slog.Logger, n *options, srv *server.Server, e *node.Engine, serveErr error) error {
	ctx, cancel := context.WithTimeout(context.Background(), n.shutdownTimeout)
	defer cancel()
	leaving, cancelLeave := context.WithTimeout(ctx, n.leaveTimeout())
	defer cancelLeave()
	if err := e.Leave(leaving); err != nil {
		logger.Warn("not every partition could be handed over: the others take them over when this node is gone", "error",
			err)
	}
	if err := srv.Shutdown(ctx); err != nil {
		logger.Warn("connections were cut before everything pending was answered", "error", err)
	}
	if err := e.Close(); err != nil {
		return &exitError{exitOther, err}
	}
	if serveErr != nil {
		return &exitError{exitOther, serveErr}
	}
	logger.Info("stopped")
	return nil
}

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
func (n *options) listenFailure(err error) error {
	if op := new(net.OpError); errors.As(err, &op) {
		return &exitError{exitAddress, n.addressError(err)}
	}
	return &exitError{exitUsage, err}
}

// addressFlags are the flags of serve about addresses, by what nsq.ListenFailure says that they are for.
var addressFlags = map[string]string{
	"clients": "--nsq-address", "HTTP": "--http-address", "HTTPS": "--https-address", "lookups": "--lookup-address",
	"registrations": "--lookup-tcp-address", "native clients": "--native-address",
	"other nodes": "--cluster-address (or cluster-peers, whose etcd ports follow it)",
}

// addressFlag names the flag that sets the address of which the error is.
func (n *options) addressFlag(err error) string {
	var failed *server.ListenFailure
	if n.addressNames == "" && errors.As(err, &failed) {
		return addressFlags[failed.What]
	}
	return cmp.Or(n.addressNames, "--cluster-address")
}

// addressError turns a listener's error into a sentence for the operator.
func (n *options) addressError(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Addr == nil {
		return err
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("the address %s is in use by another process: choose another one with %s",
			op.Addr, n.addressFlag(err))
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listening on %s is not permitted: choose a port above 1023 or run with CAP_NET_BIND_SERVICE",
			op.Addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("the address %s does not belong to this machine: choose another one with %s",
			op.Addr, n.addressFlag(err))
	}
	return err
}
