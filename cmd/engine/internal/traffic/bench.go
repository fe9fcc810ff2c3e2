package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/load"
)

// operator is cli.Operator with the commands of this package.
type operator struct{ cli.Operator }

const (
	benchAskTimeout    = 2 * time.Second
	benchDeleteTimeout = 20 * time.Second
)

// BenchCommand has the commands of penstock bench below it.
func BenchCommand() *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the performance of a running node",
		Long: strings.TrimSpace(`
Measure the performance of a running node (or any nsqd) over the NSQ protocol or, with --protocol native, of nodes over
the native one, by the client of Go programs. The report begins with the node's I/O engine, file system, device cache
and kernel, as its /info shows them.

A topic that bench creates is deleted at the end, because it would keep its messages for ever; --keep-topic keeps it. A
topic that was there before stays.

With an https address or any --tls flag, the connections of both protocols use TLS, too.`),
	}
	o.Flags(cmd)
	cmd.AddCommand(
		o.benchMode("pub", "Measure publishing, in a closed loop or, with --rate, in an open loop", load.Publish),
		o.benchMode("sub", "Measure consuming a channel's backlog, with one FIN per message", load.Consume),
		o.benchMode("e2e", "Measure the latency from publish call to handler, at a steady rate", load.EndToEnd),
		o.benchMode("read", "Measure reading what a topic keeps, without a channel, by the native protocol", load.ReadPast),
	)
	return cmd
}

func (o *operator) benchMode(
	mode, short string, measure func(context.Context, load.Config) (*load.Report, error),
) *cobra.Command {
	cmd := &cobra.Command{Use: mode, Short: short, Args: cobra.NoArgs}
	cfg := load.Config{SizeBytes: 100, Ready: 2500}
	keep := false
	f := cmd.Flags()
	native := addBenchNative(f, mode)
	if mode != "read" {
		f.StringVar(&cfg.Address, "nsq-address", "127.0.0.1:4150", "HOST:PORT of the node's NSQ protocol")
		f.StringVar(&cfg.Address, "address", "127.0.0.1:4150", "the same as --nsq-address")
		client.Hide(f, "address")
	}
	f.BoolVar(&keep, "keep-topic", false, "do not delete the topic at the end, although this run created it")
	f.StringVar(&cfg.Topic, "topic", "bench_"+mode, "topic to use")
	f.IntVar(&cfg.Connections, "connections", 1, "number of connections")
	values.DurationVar(f, &cfg.Duration, "duration", 10*time.Second, "how long to measure; 0 means until --messages")
	f.Int64Var(&cfg.Messages, "messages", 0,
		"number of messages, including the warm-up; 0 means until --duration. With this flag, --duration and --warm-up "+
			"default to 0")
	f.Var(values.Size(&cfg.SizeBytes, 1), "size", "size of a message")
	headers := "number of headers of each message, with names of 10 bytes and values of 12; above 0 sends PUB_EXT and " +
		"MPUB_EXT"
	warmUp := time.Second
	switch mode {
	case "sub":
		warmUp = 0
		headers = "number of headers of each message that --fill publishes, with names of 10 bytes and values of 12"
		f.BoolVar(&cfg.Fill, "fill", false, "create the channel and publish --messages messages before the measurement")
	case "read":
		headers = "number of headers of each message that --fill publishes, with names of 10 bytes and values of 12"
		f.BoolVar(&cfg.Fill, "fill", false, "publish --messages messages before the measurement")
	}
	f.IntVar(&cfg.Headers, "headers", 0, headers)
	if mode != "read" {
		values.DurationVar(f, &cfg.WarmUp, "warm-up", warmUp, "how long to run before the measurement begins")
	}
	if mode == "sub" || mode == "e2e" {
		f.StringVar(&cfg.Channel, "channel", "bench", "channel to use")
		f.IntVar(&cfg.Ready, "rdy", 2500, "RDY count of each consumer")
	}
	cfg.InFlight, cfg.Batch = 1, 1
	switch mode {
	case "pub":
		f.IntVar(&cfg.InFlight, "in-flight", 1, "number of unanswered commands per connection, in a closed "+
			"loop; with the native protocol of messages: 1 waits for each, more have callbacks")
		f.IntVar(&cfg.Batch, "batch", 1, "messages per command: 1 sends PUB, more send MPUB")
		f.Float64Var(&cfg.Rate, "rate", 0, "messages per second over all connections, in an open loop; 0 means a closed loop")
	case "e2e":
		f.Float64Var(&cfg.Rate, "rate", 10_000, "messages per second over all connections")
		values.DurationVar(f, &cfg.Interval, "interval", 0,
			"also report the latencies of each interval of this length, counted from the end of the warm-up; 0 means no")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.Changed("messages") && !f.Changed("duration") {
			cfg.Duration = 0
		}
		if f.Changed("messages") && !f.Changed("warm-up") {
			cfg.WarmUp = 0
		}
		return o.bench(cmd, cfg, native, keep, measure)
	}
	return cmd
}

func (o *operator) bench(
	cmd *cobra.Command, cfg load.Config, native *benchNative, keep bool,
	measure func(context.Context, load.Config) (*load.Report, error),
) error {
	ctx, stop := cli.UntilSignal(cmd.Context())
	defer stop()
	connect := o.benchConnections
	if native.protocol == "native" {
		connect = func(cfg *load.Config) error { return native.connect(&o.Client.Flags, cfg, cmd.ErrOrStderr()) }
	} else if flag := native.used(cmd.Flags()); flag != "" {
		return cli.Fail(cli.ExitUsage, fmt.Errorf("--%s belongs to --protocol native", flag))
	}
	if err := connect(&cfg); err != nil {
		return cli.WithExitCode(err)
	}
	leave := func() {}
	if !keep {
		leave = o.benchTopic(ctx, cfg.Topic, cmd.ErrOrStderr())
	}
	o.benchInfo(&cfg)
	finish := showProgress(&cfg, cmd.ErrOrStderr())
	report, err := measure(ctx, cfg)
	finish()
	if !errors.Is(err, load.ErrConfig) { // otherwise nothing was sent
		leave()
	}
	if report != nil {
		write := report.WriteText
		if o.AsJSON {
			write = report.WriteJSON
		}
		if err := write(cmd.OutOrStdout()); err != nil {
			return cli.Fail(cli.ExitOther, err)
		}
	}
	if errors.Is(err, load.ErrConfig) {
		return cli.Fail(cli.ExitUsage, err)
	}
	return cli.WithExitCode(err)
}

// benchConnections says how the connections of the NSQ protocol are made.
func (o *operator) benchConnections(cfg *load.Config) (err error) {
	if cfg.Token, err = o.Client.Token(); err != nil {
		return err
	}
	if o.Client.UsesTLS() {
		if cfg.TLS, err = o.Client.TLS(); err != nil {
			return err
		}
	} else if host, _, splitErr := net.SplitHostPort(cfg.Address); splitErr == nil {
		if err := o.Client.CheckPlaintext(cfg.Token, host, "https:// in --http-address"); err != nil {
			return err
		}
	}
	return nil
}

// benchInfo says how the node is asked about itself.
func (o *operator) benchInfo(cfg *load.Config) {
	if o.Client.Address != "" {
		cfg.Info = func() []byte {
			ctx, cancel := context.WithTimeout(context.Background(), benchAskTimeout)
			defer cancel()
			status, data, err := o.Client.Exchange(ctx, http.MethodGet, "/info", nil, nil)
			if err != nil || status != http.StatusOK {
				return nil
			}
			return data
		}
	}
}

// benchTopic finds out whether the topic exists, and returns a function that deletes it if it did not. O15: a topic
// without a channel keeps its messages for ever. When it cannot be told whether the topic existed, the topic stays and
// a line on w says so: it may hold somebody's messages.
func (o *operator) benchTopic(ctx context.Context, topic string, w io.Writer) (leave func()) {
	if o.Client.Address == "" {
		return func() {}
	}
	ask, cancel := context.WithTimeout(ctx, benchAskTimeout)
	defer cancel()
	exists, err := o.topicExists(ask, topic)
	switch {
	case err != nil:
		return func() {
			fmt.Fprintf(w, "penstock: topic %s stays, because it is not known whether this run created it: %v\n", topic, err)
		}
	case exists:
		return func() {}
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), benchDeleteTimeout) // also after Ctrl-C
		defer cancel()
		if err := o.Client.Post(ctx, "/topic/delete", cli.QueryOf(topic, ""), nil, nil); err != nil {
			fmt.Fprintf(w, "penstock: topic %s was not deleted and keeps its messages: %v\n", topic, err)
		}
	}
}

// topicExists asks a node of ours or a stock nsqd.
func (o *operator) topicExists(ctx context.Context, topic string) (bool, error) {
	status, data, err := o.Client.Exchange(ctx, http.MethodGet, "/topic/settings", cli.QueryOf(topic, ""), nil)
	switch {
	case err != nil:
		return false, err
	case status == http.StatusOK:
		return true, nil
	case status == http.StatusNotFound && bytes.Contains(data, []byte("TOPIC_NOT_FOUND")):
		return false, nil
	case status == http.StatusNotFound: // nsqd does not know this request
		all, err := cli.NumbersOf(ctx, &o.Client, topic)
		return len(all) > 0, err
	}
	return false, fmt.Errorf("the node answers with status %d", status)
}

// showProgress draws a progress bar if w is a terminal. It draws nothing elsewhere, so that it cannot end up in a file.
func showProgress(cfg *load.Config, w io.Writer) (finish func()) {
	if !cli.IsTerminal(w) {
		return func() {}
	}
	const steps = 1000
	bar := progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false))
	start, before := time.Now(), int64(0)
	cfg.Progress = func(part float64, messages int64) {
		if now := time.Now(); now.Sub(start) > 0 && messages != before {
			bar.Describe(fmt.Sprintf("%9.0f msg/s", float64(messages-before)/now.Sub(start).Seconds()))
			start, before = now, messages
		}
		_ = bar.Set(int(part * steps))
	}
	return func() { _ = bar.Finish() }
}
