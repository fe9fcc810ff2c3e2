package traffic

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	nodes "penstock/client"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/internal/node/names"
	"penstock/netproto"
)

// defaultNativeAddress is where a node listens for native clients by default.
const defaultNativeAddress = "127.0.0.1:4250"

// nativeDialTime is how long a command waits for the first node that takes its connection: longer than an election, and
// than the start of a node after a crash mostly takes.
const nativeDialTime = 10 * time.Second

// nativeFlags are what the commands share that speak the native protocol: which nodes to ask first, how to trust them,
// and how to be trusted by them.
type nativeFlags struct {
	client.Flags // without an address
	seeds        []string
	useTLS       bool
	mapped       []string
	refuse       func(error) // called if the token must not be sent to a node; nil: that is only logged
	reach        reach
}

func (n *nativeFlags) Add(set *pflag.FlagSet) {
	set.StringSliceVar(&n.seeds, "nodes", defaultSeeds(),
		"HOST:PORT of the native protocol of one or more nodes, separated by commas; they say where the others are "+
			"(or "+client.EnvNodes+")")
	set.StringSliceVar(&n.mapped, "dial", nil, "ANNOUNCED=HOST:PORT,...: dial HOST:PORT where the cluster announces "+
		"ANNOUNCED, another HOST:PORT, such as behind forwarded ports")
	set.BoolVar(&n.useTLS, "tls", false, "use TLS, also if no other --tls flag is given")
	n.AddTrust(set)
}

// defaultSeeds returns what --nodes is when nobody says it.
func defaultSeeds() []string {
	if named := os.Getenv(client.EnvNodes); named != "" {
		return strings.Split(named, ",")
	}
	return []string{defaultNativeAddress}
}

// CheckNamed refuses what names nothing: a partition below -1, which means any, or names that no topic or channel has.
func CheckNamed(partition int, topic string, channel ...string) error {
	switch {
	case partition < -1:
		return cli.Fail(cli.ExitUsage, fmt.Errorf("--partition is %d, and partitions count from 0", partition))
	case !names.ValidTopic(topic):
		return cli.Fail(cli.ExitUsage, fmt.Errorf("%q is not the name of a topic", topic))
	case len(channel) > 0 && !names.ValidChannel(channel[0]):
		return cli.Fail(cli.ExitUsage, fmt.Errorf("%q is not the name of a channel", channel[0]))
	}
	return nil
}

// dial connects to the cluster. What happens to connections is written to log, one line each.
func (n *nativeFlags) dial(ctx context.Context, log io.Writer) (*nodes.Client, error) {
	return n.dialWithin(ctx, log, nativeDialTime)
}

func (n *nativeFlags) dialWithin(ctx context.Context, log io.Writer, limit time.Duration) (*nodes.Client, error) {
	o, err := n.options(log)
	if err != nil {
		return nil, err
	}
	first, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := nodes.Dial(first, n.seeds, o)
	if err != nil && ctx.Err() == nil && first.Err() != nil {
		advice := "name the native address of a running node, which has port 4250 by default; a node whose nsq-address " +
			"is not the default one has a native address only if --native-address names one"
		if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
			advice = "name the certificate of the node's authority with --tls-ca"
		}
		return nil, fmt.Errorf("no node of --nodes %s took the connection in %v: %s; nothing was done: %s",
			strings.Join(n.seeds, ","), limit, n.unreached(err), advice)
	}
	return c, err
}

// unreached says in an operator's words why no node took the connection.
func (n *nativeFlags) unreached(err error) string {
	var dial *net.OpError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, netproto.ErrUnproven): // native listeners do not ask for the cluster's secret
		return "that port is for other nodes of the cluster"
	case errors.As(err, &dial) && dial.Op == "dial":
		return dial.Error()
	case errors.As(err, &certificate):
		return certificate.Error()
	case n.useTLS || n.UsesTLS():
		return "what listens there does not speak the native protocol over TLS, or does not accept the certificate"
	}
	return "what listens there does not speak the native protocol, or only over TLS (--tls)"
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
	if len(n.seeds) == 0 {
		return o, cli.Fail(cli.ExitUsage, errors.New("--nodes names no node: say HOST:PORT of one or more"))
	}
	for _, seed := range n.seeds {
		host, _, err := net.SplitHostPort(seed)
		if err != nil {
			return o, cli.Fail(cli.ExitUsage, fmt.Errorf("--nodes %s is not HOST:PORT", seed))
		}
		if o.TLS == nil {
			if err := n.CheckPlaintext(token, host, "--tls"); err != nil {
				return o, err
			}
		}
	}
	if o.Addresses, err = n.addresses(); err != nil {
		return o, cli.Fail(cli.ExitUsage, err)
	}
	o.Hooks.Connected, o.Hooks.Failed = n.connected, n.failed
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

// Run runs do with a connection to the cluster. If the token must not be sent to one of the nodes, do's context ends,
// and the error says why.
func (n *nativeFlags) Run(ctx context.Context, log io.Writer, do func(context.Context, *nodes.Client) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.refuse = cancel
	c, err := n.dial(ctx, log)
	if err == nil {
		defer c.Close()
		err = do(ctx, c)
	} else if ctx.Err() != nil {
		err = errors.New("interrupted before a node answered: nothing was done")
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, client.ErrUsage):
		return cause
	case isUnreached(cause) && err != nil && !errors.Is(err, context.Canceled):
		return fmt.Errorf("%w; %w", cause, err)
	case isUnreached(cause):
		return cause
	}
	return err
}

// afterSignal returns a context that goes on after Ctrl-C, for what has to be brought to an end, but not after the
// token was refused to a node.
func afterSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	end, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, client.ErrUsage) || isUnreached(cause) {
			cancel()
		}
	})
	return end, cancel
}

// Completes makes the shell propose topics and channels. The native protocol does not list them, so a node's HTTP API
// is asked: that of PENSTOCK_SERVER or, without it, the one that the first node of --nodes has by default.
func (n *nativeFlags) Completes(cmd *cobra.Command) {
	o := &operator{}
	o.Completes(cmd)
	propose := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		o.Client.Flags = n.Flags
		o.Client.Address = n.httpAddress()
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
