package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/client"
	"penstock/internal/clip"
)

// Operator is what all commands share that talk to a running node: the client, and where to read and print.
type Operator struct {
	Client client.Client
	AsJSON bool
	In     io.Reader
	Out    io.Writer
	Prompt io.Writer
}

// Flags adds the flags that cmd and all commands below it have. aliases are old names of --http-address.
func (o *Operator) Flags(cmd *cobra.Command, aliases ...string) {
	o.Client.Add(cmd.PersistentFlags(), aliases...)
	cmd.PersistentFlags().BoolVar(&o.AsJSON, "json", false, "print JSON")
}

// Action makes a command. An error that does not carry its own exit code makes the command exit with 1.
func (o *Operator) Action(
	use, short string, args cobra.PositionalArgs, do func(ctx context.Context, args []string) error,
) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		o.In, o.Out, o.Prompt = cmd.InOrStdin(), &clip.Writer{To: cmd.OutOrStdout()}, cmd.ErrOrStderr()
		ctx, stop := UntilSignal(cmd.Context())
		defer stop()
		return WithExitCode(do(ctx, args))
	}}
	o.Completes(cmd)
	return cmd
}

// Anywhere adds the flags of o to a command that stands alone. Commands below another one get them from that one.
func (o *Operator) Anywhere(cmd *cobra.Command) *cobra.Command {
	o.Flags(cmd)
	return cmd
}

// QueryOf returns a query that names a topic and, unless it is empty, a channel.
func QueryOf(topic, channel string) url.Values {
	q := url.Values{"topic": {topic}}
	if channel != "" {
		q.Set("channel", channel)
	}
	return q
}

// AnyOwn reports whether a flag was given that belongs to the command itself, not to all commands.
func AnyOwn(cmd *cobra.Command) bool {
	own, any := cmd.LocalNonPersistentFlags(), false
	own.VisitAll(func(f *pflag.Flag) { any = any || f.Changed })
	return any
}

// Print writes a command's result to Out: as JSON with the flag --json, otherwise with the function text.
func (o *Operator) Print(v any, text func(io.Writer) error) error {
	if o.AsJSON {
		return PrintJSON(o.Out, v)
	}
	return text(o.Out)
}

// Show gets an answer, and prints it: as JSON with the flag --json, otherwise with the function text.
func Show[T any](
	ctx context.Context, o *Operator, path string, q url.Values, text func(io.Writer, *T) error,
) error {
	answer := new(T)
	if err := o.Client.Get(ctx, path, q, answer); err != nil {
		return err
	}
	return o.Print(answer, func(w io.Writer) error { return text(w, answer) })
}

// Change posts a change that has no answer, and reports it with one sentence.
func (o *Operator) Change(ctx context.Context, path string, q url.Values, done string, args ...any) error {
	if err := o.Client.Post(ctx, path, q, nil, nil); err != nil {
		return err
	}
	return o.Done(done, args...)
}

// Done reports a change with one sentence.
func (o *Operator) Done(format string, args ...any) error {
	said := struct {
		Message string `json:"message"`
	}{fmt.Sprintf(format, args...)}
	return o.Print(said, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, said.Message)
		return err
	})
}

// Must panics on an error that only a mistake in this program can cause.
func Must(err error) {
	if err != nil {
		panic("BUG: " + err.Error())
	}
}

// UntilSignal returns a context that ends with the first SIGTERM or SIGINT. The second signal ends the process at once.
// The caller must call the returned function.
func UntilSignal(parent context.Context) (context.Context, func()) {
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
			os.Exit(ExitOther)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
		close(signals)
	}
}
