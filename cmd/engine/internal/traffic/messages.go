package traffic

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	nodes "penstock/client"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/clip"
	"penstock/internal/server/api"
)

// ReadMessage is a message as read and sub print it with --format json. Of a text and its base64 form only one is
// there: the text if the bytes are UTF-8.
type ReadMessage struct {
	ID         string             `json:"id"`
	Partition  uint32             `json:"partition"`
	Number     uint64             `json:"number"`             // in the partition, from 0
	Timestamp  time.Time          `json:"timestamp"`          // when it was published
	Attempts   int                `json:"attempts,omitempty"` // deliveries so far, this one included; only sub
	Key        *string            `json:"key,omitempty"`
	KeyBase64  []byte             `json:"key_base64,omitempty"`
	Headers    []api.PeekedHeader `json:"headers,omitempty"`
	Body       *string            `json:"body,omitempty"`
	BodyBase64 []byte             `json:"body_base64,omitempty"`
}

// Printer prints messages, for read and sub.
type Printer struct {
	format string
	count  uint64 // 0: no limit

	mu   sync.Mutex // guards what follows: read --follow reads partitions at once
	out  *bufio.Writer
	left uint64 // how many messages may still be printed, if count is not 0
	line []byte
}

// FormatHelp is the part of the help about FORMAT.
const FormatHelp = `FORMAT is one of:
  body  the bytes of the message, and the end of a line
  json  an object with id, partition, number, timestamp, key, headers and body
  hex   the bytes of the message, as hex digits`

func (p *Printer) Flags(f *pflag.FlagSet) {
	p.format = "body"
	f.Uint64Var(&p.count, "count", 0, "how many messages to print; 0 means all")
	f.Var(values.Choice(&p.format, "body", "json", "hex"), "format", "how to print a message")
}

// Begin begins a run. On a terminal, what publishers wrote cannot do more than be read.
func (p *Printer) Begin(out io.Writer) {
	if cli.IsTerminal(out) {
		out = &clip.Writer{To: out}
	}
	p.out, p.left = bufio.NewWriterSize(out, 64<<10), p.count
}

// whileRead does what prints messages, until a signal comes or nobody reads them any more.
func (p *Printer) whileRead(cmd *cobra.Command, do func(context.Context) error) error {
	signal.Ignore(syscall.SIGPIPE) // who reads the output may have seen enough
	ctx, stop := cli.UntilSignal(cmd.Context())
	defer stop()
	p.Begin(cmd.OutOrStdout())
	if err := do(ctx); !errors.Is(err, syscall.EPIPE) {
		return cli.WithExitCode(err)
	}
	return nil
}

// ErrEnough ends a run that has printed as many messages as it should.
var ErrEnough = errors.New("enough")

// Print writes one message in the printer's format. attempts is the number of the delivery, and 0 for a message that
// was read without a channel. With flush, Print also writes what it has buffered, because no other message follows just
// now.
func (p *Printer) Print(m *nodes.Message, attempts int, flush bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count > 0 && p.left == 0 {
		return ErrEnough
	}
	line := p.line[:0]
	switch p.format {
	case "hex":
		line = hex.AppendEncode(line, m.Body)
	case "json":
		shown := jsonOf(m)
		shown.Attempts = attempts
		text, err := json.Marshal(shown)
		if err != nil {
			return err
		}
		line = append(line, text...)
	default:
		line = append(line, m.Body...)
	}
	p.line = append(line, '\n')
	if _, err := p.out.Write(p.line); err != nil {
		return err
	}
	p.left--
	if p.count > 0 && p.left == 0 {
		return ErrEnough
	}
	if flush {
		return p.out.Flush()
	}
	return nil
}

// Flush writes what was printed.
func (p *Printer) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Flush()
}

func jsonOf(m *nodes.Message) *ReadMessage {
	out := &ReadMessage{
		ID: m.ID.String(), Partition: m.ID.Partition(), Number: uint64(m.ID.MsgID()), Timestamp: m.Time.UTC(),
	}
	out.Body, out.BodyBase64 = api.TextOr(m.Body)
	if m.Key != nil {
		out.Key, out.KeyBase64 = api.TextOr(m.Key)
	}
	for _, h := range m.Headers {
		header := api.PeekedHeader{Name: string(h.Key)}
		header.Value, header.ValueBase64 = api.TextOr(h.Value)
		out.Headers = append(out.Headers, header)
	}
	return out
}

// place reads --from. partition is that of an ID, otherwise -1.
func place(text string) (from nodes.From, partition int, err error) {
	p, err := cli.ParsePlace("from", text, time.Now())
	if err != nil {
		return from, 0, err
	}
	from, partition = p.From()
	return from, partition, nil
}
