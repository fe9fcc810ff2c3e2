package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	nodes "penstock/client"
	"penstock/cmd/engine/client"
)

// defaultNativeAddress is where a node listens for native clients by default.
const defaultNativeAddress = "127.0.0.1:4250"

// nativeFlags are what the commands share that speak the native protocol: which nodes to ask first, how to trust them,
// and how to be trusted by them.
type nativeFlags struct {
	client.Flags // without an address
	seeds        []string
	useTLS       bool
	refuse       func(error) // called if the token must not be sent to a node; nil: that is only logged
}

func (n *nativeFlags) add(set *pflag.FlagSet) {
	set.StringSliceVar(&n.seeds, "nodes", []string{defaultNativeAddress},
		"HOST:PORT of the native protocol of one or more nodes, separated by commas; they say where the others are")
	set.BoolVar(&n.useTLS, "tls", false, "use TLS, also if no other --tls flag is given")
	n.AddTrust(set)
}

// dial connects to the cluster. What happens to connections is written to log, one line each.
func (n *nativeFlags) dial(ctx context.Context, log io.Writer) (*nodes.Client, error) {
	o, err := n.options(log)
	if err != nil {
		return nil, err
	}
	return nodes.Dial(ctx, n.seeds, o)
}

// options are the client's options, as the flags say.
func (n *nativeFlags) options(log io.Writer) (o nodes.Options, err error) {
	token, err := n.Token()
	if err != nil {
		return o, err
	}
	o = nodes.Options{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if n.useTLS || n.UsesTLS() {
		var config *tls.Config
		if config, err = n.TLS(); err != nil {
			return o, err
		}
		o.TLS = config
	}
	for _, seed := range n.seeds {
		host, _, err := net.SplitHostPort(seed)
		if err != nil {
			return o, &exitError{exitUsage, fmt.Errorf("--nodes %s is not HOST:PORT", seed)}
		}
		if o.TLS == nil {
			if err := n.CheckPlaintext(token, host, "--tls"); err != nil {
				return o, err
			}
		}
	}
	if token != "" {
		o.Token = func(_ context.Context, address string) (string, error) {
			return token, n.mayHave(address, token, o.TLS != nil)
		}
	}
	return o, nil
}

// mayHave refuses to send the token in clear to a node on another machine. The address may be one that the cluster
// says.
func (n *nativeFlags) mayHave(address, token string, secure bool) error {
	if secure {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err == nil {
		err = n.CheckPlaintext(token, host, "--tls")
	}
	if err != nil && n.refuse != nil {
		n.refuse(err)
	}
	return err
}

// run runs do with a connection to the cluster. If the token must not be sent to one of the nodes, do's context ends,
// and the error says why.
func (n *nativeFlags) run(ctx context.Context, log io.Writer, do func(context.Context, *nodes.Client) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.refuse = cancel
	c, err := n.dial(ctx, log)
	if err == nil {
		defer c.Close()
		err = do(ctx, c)
	}
	if cause := context.Cause(ctx); errors.Is(cause, client.ErrUsage) {
		return cause
	}
	return err
}

// afterSignal returns a context that goes on after Ctrl-C, for what has to be brought to an end, but not after the
// token was refused to a node.
func afterSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	end, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), client.ErrUsage) {
			cancel()
		}
	})
	return end, cancel
}

// completes makes the shell propose topics and channels. The native protocol does not list them, so a node's HTTP API
// is asked: that of ENGINE_HTTP_ADDRESS or, without it, the one that the first node of --nodes has by default.
func (n *nativeFlags) completes(cmd *cobra.Command) {
	o := &operator{}
	o.completes(cmd)
	propose := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		o.client.Flags = n.Flags
		o.client.Address = n.httpAddress()
		return propose(cmd, args, begun)
	}
}

// httpAddress is where completion asks.
func (n *nativeFlags) httpAddress() string {
	if address := os.Getenv(client.EnvAddress); address != "" {
		return address
	}
	host, _, err := net.SplitHostPort(n.seeds[0])
	switch {
	case err != nil:
		return client.DefaultAddress
	case n.useTLS || n.UsesTLS():
		return "https://" + net.JoinHostPort(host, "4152")
	}
	return net.JoinHostPort(host, "4151")
}
