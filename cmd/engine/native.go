package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"

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
		o.Token = func(context.Context) (string, error) { return token, nil }
	}
	return o, nil
}
