package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"penstock/cmd/engine/load"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the performance of a running node",
		Long: strings.TrimSpace(`
Measure the performance of a running node (or any nsqd) over the NSQ protocol. The report begins with the node's I/O
engine, file system, device cache and kernel, as its /info shows them.`),
	}
	cmd.AddCommand(
		benchMode("pub", "Measure publishing, in a closed loop or, with --rate, in an open loop", load.Publish),
		benchMode("sub", "Measure consuming a channel's backlog, with one FIN per message", load.Consume),
		benchMode("e2e", "Measure the latency from publish call to handler, at a steady rate", load.EndToEnd),
	)
	return cmd
}

func benchMode(mode, short string, measure func(context.Context, load.Config) (*load.Report, error)) *cobra.Command {
	cmd := &cobra.Command{Use: mode, Short: short, Args: cobra.NoArgs}
	cfg := load.Config{SizeBytes: 100, Ready: 2500}
	asJSON := false
	f := cmd.Flags()
	f.StringVar(&cfg.Address, "address", "127.0.0.1:4150", "HOST:PORT of the node's NSQ protocol")
	f.StringVar(&cfg.HTTPAddress, "http-address", "127.0.0.1:4151",
		"HOST:PORT of the node's HTTP API, used to describe the node in the report; empty means do not ask it")
	f.StringVar(&cfg.Topic, "topic", "bench_"+mode, "topic to use")
	f.IntVar(&cfg.Connections, "connections", 1, "number of connections")
	f.DurationVar(&cfg.Duration, "duration", 10*time.Second, "how long to measure; 0 means until --messages")
	f.Int64Var(&cfg.Messages, "messages", 0,
		"number of messages, including the warm-up; 0 means until --duration. With this flag, --duration and --warm-up "+
			"default to 0")
	f.Var(intBytesValue{&cfg.SizeBytes, 1}, "size", "size of a message")
	headers := "number of headers of each message, with names of 10 bytes and values of 12; above 0 sends PUB_EXT and " +
		"MPUB_EXT"
	if mode == "sub" {
		headers = "number of headers of each message that --fill publishes, with names of 10 bytes and values of 12"
	}
	f.IntVar(&cfg.Headers, "headers", 0, headers)
	f.BoolVar(&asJSON, "json", false, "print JSON")
	warmUp := time.Second
	if mode == "sub" {
		warmUp = 0
		f.BoolVar(&cfg.Fill, "fill", false, "create the channel and publish --messages messages before the measurement")
	}
	f.DurationVar(&cfg.WarmUp, "warm-up", warmUp, "how long to run before the measurement begins")
	if mode != "pub" {
		f.StringVar(&cfg.Channel, "channel", "bench", "channel to use")
		f.IntVar(&cfg.Ready, "rdy", 2500, "RDY count of each consumer")
	}
	cfg.InFlight, cfg.Batch = 1, 1
	switch mode {
	case "pub":
		f.IntVar(&cfg.InFlight, "in-flight", 1, "number of unanswered commands per connection, in a closed loop")
		f.IntVar(&cfg.Batch, "batch", 1, "messages per command: 1 sends PUB, more send MPUB")
		f.Float64Var(&cfg.Rate, "rate", 0, "messages per second over all connections, in an open loop; 0 means a closed loop")
	case "e2e":
		f.Float64Var(&cfg.Rate, "rate", 10_000, "messages per second over all connections")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.Changed("messages") && !f.Changed("duration") {
			cfg.Duration = 0
		}
		if f.Changed("messages") && !f.Changed("warm-up") {
			cfg.WarmUp = 0
		}
		return bench(cmd, cfg, asJSON, measure)
	}
	return cmd
}

func bench(
	cmd *cobra.Command, cfg load.Config, asJSON bool, measure func(context.Context, load.Config) (*load.Report, error),
) error {
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	finish := showProgress(&cfg, cmd.ErrOrStderr())
	report, err := measure(ctx, cfg)
	finish()
	if report != nil {
		write := report.WriteText
		if asJSON {
			write = report.WriteJSON
		}
		if err := write(cmd.OutOrStdout()); err != nil {
			return &exitError{exitOther, err}
		}
	}
	switch {
	case errors.Is(err, load.ErrConfig):
		return &exitError{exitUsage, err}
	case err != nil:
		return &exitError{exitOther, err}
	}
	return nil
}

// showProgress draws a progress bar if w is a terminal. It draws nothing elsewhere, so that it cannot end up in a file.
func showProgress(cfg *load.Config, w io.Writer) (finish func()) {
	if !isTerminal(w) {
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
