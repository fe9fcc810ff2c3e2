package traffic

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"penstock/batch"
	nodes "penstock/client"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/values"
)

// PubReport is what pub prints with --json.
type PubReport struct {
	Topic     string `json:"topic"`
	Published uint64 `json:"published"` // messages that this run published and that are stored
	Skipped   uint64 `json:"skipped"`   // lines that earlier runs had published
	Unknown   uint64 `json:"unknown"`   // messages of which it is not known whether they are stored
	Failed    uint64 `json:"failed"`    // messages that were not stored
	LastID    string `json:"last_id,omitempty"`
}

// pubCloseTime is how long an interrupted run waits for the answers to what it has sent.
const pubCloseTime = 500 * time.Millisecond

// Publication is one run of pub.
type Publication struct {
	Native nativeFlags

	Partition int // negative: any
	Producer  string
	key       string
	headers   []string
	lines     bool
	rate      float64
	delay     time.Duration
	compress  string
	AsJSON    bool
	Unit      string // what is published; empty: lines

	mu      sync.Mutex // guards what follows: done runs on goroutines of the client
	Report  PubReport
	failed  error         // why the first message that is not known to be stored is not
	stopped chan struct{} // closed when failed is set
}

// PubCommand publishes messages.
func PubCommand() *cobra.Command {
	p := &Publication{}
	cmd := &cobra.Command{
		Use:   "pub TOPIC",
		Short: "Publish what stands on standard input",
		Long: strings.TrimSpace(`
Publish what stands on standard input: all of it as one message or, with --lines, each line as one. A message is
published once it is on stable storage on every in-sync replica.

With --producer and --lines, line n has sequence number n-1 of that producer in its partition. After a crash, run the
same command again with the same input: it goes on after the last line that is stored, and no line is stored twice. Two
programs must not use a name at the same time: the later one ends the earlier one.

With --defer the messages are published over HTTP, one after the other, at the node of PENSTOCK_SERVER or, without it,
at port 4151 (4152 with TLS) of the first of --nodes.`),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.rate < 0 {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("--rate %v is negative", p.rate))
			}
			if p.Producer == "" && cmd.Flags().Changed("producer") { // a script's variable that is not set
				return cli.Fail(cli.ExitUsage, errors.New("--producer needs a name: without one a later run could not tell what "+
					"this one has published; nothing was published"))
			}
			if err := CheckNamed(p.Partition, args[0]); err != nil {
				return err
			}
			ctx, stop := cli.UntilSignal(cmd.Context())
			defer stop()
			return cli.WithExitCode(p.run(ctx, args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	f := cmd.Flags()
	p.Native.Add(f)
	f.IntVar(&p.Partition, "partition", -1, "partition to publish to; with --producer the default is 0, otherwise any")
	f.StringVar(&p.Producer, "producer", "", "`NAME` under which a later run goes on where this one ends")
	f.StringVar(&p.key, "key", "", "key of the messages: those with equal keys keep their order")
	f.StringArrayVar(&p.headers, "header", nil, "header of the messages, as `NAME=VALUE`; may be repeated")
	f.BoolVar(&p.lines, "lines", false, "each line is a message, without the byte that ends it")
	f.Float64Var(&p.rate, "rate", 0, "messages per second; 0 means as fast as possible")
	values.DurationVar(f, &p.delay, "defer", 0, "deliver the messages only after this time, at most the node's max-defer")
	f.Var(values.Choice(&p.compress, "", "s2", "zstd"), "compress", "how to compress messages: s2 (fast) or zstd "+
		"(smaller)")
	f.BoolVar(&p.AsJSON, "json", false, "print JSON")
	for _, other := range []string{"producer", "partition", "header", "compress"} { // which only the native protocol has
		cmd.MarkFlagsMutuallyExclusive("defer", other)
	}
	p.Native.Completes(cmd)
	cli.CompletesChoices(cmd)
	return cmd
}

// options returns what the flags say about the producer.
func (p *Publication) options() nodes.ProducerOptions {
	// After a failure nothing is stored, so that no later line gets the number of an earlier one.
	o := nodes.ProducerOptions{Name: p.Producer, StopAtFailure: true, Compression: compression(p.compress)}
	if p.Producer != "" && p.Partition < 0 && p.key == "" {
		p.Partition = 0
	}
	if p.Partition >= 0 {
		o.Partition = func(*nodes.Message, int) int { return p.Partition }
	}
	return o
}

// resumes says whether the run goes on where an earlier one ended.
func (p *Publication) resumes() bool { return p.Producer != "" && p.lines }

// parseHeaders reads the values of --header.
func parseHeaders(texts []string) ([]nodes.Header, error) {
	var out []nodes.Header
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, cli.Fail(cli.ExitUsage, fmt.Errorf("--header %s is not NAME=VALUE", text))
		}
		out = append(out, nodes.Header{Key: []byte(name), Value: []byte(value)})
	}
	return out, nil
}

// bodies sends the messages that stand in in, until it ends or ctx does. The error is there once out is closed.
func (p *Publication) bodies(ctx context.Context, in io.Reader) (out chan []byte, failed *error) {
	out, failed = make(chan []byte), new(error)
	go func() {
		defer close(out)
		n := 0
		send := func(body []byte) bool {
			n++
			switch {
			case len(body) == 0 && p.lines:
				*failed = fmt.Errorf("line %d is empty, and a message has at least one byte: it was not published, nor was what "+
					"follows", n)
			case len(body) == 0:
				*failed = errors.New("standard input is empty, and a message has at least one byte: nothing was published")
			default:
				select {
				case out <- body:
					return true
				case <-ctx.Done():
				}
			}
			return false
		}
		if !p.lines {
			body, err := io.ReadAll(io.LimitReader(in, batch.MaxBatchBytes+1))
			switch {
			case err != nil:
				*failed = err
			case len(body) > batch.MaxBatchBytes:
				*failed = fmt.Errorf("standard input has more than %d bytes, and no message has: nothing was published; "+
					"--lines publishes each line", batch.MaxBatchBytes)
			default:
				send(body)
			}
			return
		}
		s := bufio.NewScanner(in)
		s.Buffer(make([]byte, 64<<10), batch.MaxBatchBytes)
		s.Split(splitLines)
		for s.Scan() {
			if !send(bytes.Clone(s.Bytes())) {
				return
			}
		}
		if *failed = s.Err(); errors.Is(*failed, bufio.ErrTooLong) {
			*failed = fmt.Errorf("line %d has more than %d bytes, and no message has: it was not published, nor was what "+
				"follows", n+1, batch.MaxBatchBytes)
		}
	}()
	return out, failed
}

// nextBody receives the next message. It returns false after the last one, and when ctx ends: the goroutine of bodies
// may then go on waiting for standard input.
func nextBody(ctx context.Context, bodies <-chan []byte) ([]byte, bool) {
	select {
	case body, more := <-bodies:
		return body, more
	case <-ctx.Done():
		return nil, false
	}
}

// splitLines is bufio.ScanLines, but leaves a carriage return at the end of a line: it may belong to the message.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// Done counts what became of a message.
func (p *Publication) Done(_ *nodes.Message, id nodes.ID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.Report.Published++
		p.Report.LastID = id.String()
		return
	case errors.Is(err, nodes.ErrUnknown):
		p.Report.Unknown++
	default:
		p.Report.Failed++
	}
	if p.failed == nil {
		p.failed = err
		close(p.stopped)
	}
}

func (p *Publication) run(ctx context.Context, topic string, in io.Reader, out, progress io.Writer) error {
	if p.delay > 0 {
		return p.later(ctx, topic, in, out, progress)
	}
	headers, err := parseHeaders(p.headers)
	if err != nil {
		return err
	}
	return p.Native.Run(ctx, progress, func(ctx context.Context, c *nodes.Client) error {
		return p.Send(ctx, c, topic, out, func(ctx context.Context, producer *nodes.Producer) error {
			return p.publish(ctx, producer, headers, in, progress)
		})
	})
}

// Send opens the producer, with which publish publishes, and prints what became of it.
func (p *Publication) Send(
	ctx context.Context, c *nodes.Client, topic string, out io.Writer,
	publish func(context.Context, *nodes.Producer) error,
) error {
	producer, err := c.Producer(ctx, topic, p.options())
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted before the topic's leaders answered: nothing was published")
	case err != nil:
		return err
	}
	p.Report.Topic, p.stopped = topic, make(chan struct{})
	ended := publish(ctx, producer)
	// What was taken is on its way. After Ctrl-C it gets a moment to be answered; a second signal ends the process.
	end, cancel := afterSignal(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(pubCloseTime, cancel) })
	unanswered := producer.Close(end) != nil
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case unanswered && ended == nil:
		ended = errors.New("interrupted before every message was answered")
	case !unanswered && !errors.Is(p.failed, nodes.ErrBuffered): // then a message waited for room until the signal
		ended = cmp.Or(p.failed, ended)
	}
	return cmp.Or(ended, p.show(out))
}

func (p *Publication) show(out io.Writer) error {
	if p.AsJSON {
		return cli.PrintJSON(out, &p.Report)
	}
	return p.print(out)
}

func (p *Publication) print(w io.Writer) error {
	r := &p.Report
	text := fmt.Sprintf("published %s to topic %s", cli.Counted(r.Published, "message"), r.Topic)
	if r.Skipped > 0 {
		text += fmt.Sprintf("; %s been published before, by an earlier run",
			cli.InNumber(r.Skipped, cmp.Or(p.Unit, "line")+" had", cmp.Or(p.Unit, "line")+"s had"))
	}
	if r.Failed > 0 {
		text += "; " + cli.InNumber(r.Failed, "was not stored", "were not stored")
	}
	if r.Unknown > 0 {
		text += "; of " + cli.InNumber(r.Unknown, "it is not known whether it is stored",
			"it is not known whether they are stored")
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// earlier is how many lines earlier runs have published. It is an error if these seem to lie in another partition than
// the key's: the topic may have got more partitions since, and all lines would be stored a second time.
func (p *Publication) earlier(producer *nodes.Producer) (uint64, error) {
	if !p.resumes() {
		return 0, nil
	}
	at := p.Partition
	if at < 0 {
		at = nodes.PartitionOf([]byte(p.key), producer.Partitions())
	}
	last, ok := producer.LastSequence(at)
	if ok {
		return uint64(last) + 1, nil
	}
	for other := range producer.Partitions() {
		if _, ok := producer.LastSequence(other); ok && p.Partition < 0 {
			return 0, fmt.Errorf("producer %s has published to partition %d, and the key belongs to partition %d, perhaps "+
				"since the topic has more partitions; nothing was published: go on with --partition %[2]d, or begin anew with "+
				"--partition %[3]d", p.Producer, other, at)
		}
	}
	return 0, nil
}

// publish produces the messages that stand in in, from the first one on that no earlier run has published. It ends
// early when ctx ends, or a message could not be published. The error says why not all of in was produced.
func (p *Publication) publish(
	ctx context.Context, producer *nodes.Producer, headers []nodes.Header, in io.Reader, progress io.Writer,
) error {
	ctx, cancel := p.UntilFailure(ctx)
	defer cancel()
	skip, err := p.earlier(producer)
	if err != nil {
		return err
	}
	bodies, failed := p.bodies(ctx, in)
	show, finish := cli.CountBar(progress, -1, "publishing")
	defer finish()
	clock := pace{rate: p.rate, start: time.Now()}
	n := uint64(0) // that were skipped or produced
	for {
		body, more := nextBody(ctx, bodies)
		if !more {
			break
		}
		if n < skip {
			n++
			p.Report.Skipped++
			continue
		}
		if p.resumes() && n == math.MaxUint32 {
			return fmt.Errorf("line %d and what follows were not published: a producer with a name numbers %d messages", n+1,
				uint32(math.MaxUint32))
		}
		if !clock.wait(ctx) {
			break
		}
		n++
		m := &nodes.Message{Headers: headers, Body: body}
		if p.key != "" {
			m.Key = []byte(p.key)
		}
		producer.Produce(ctx, m, p.Done)
		show(int64(n))
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: what follows message %d was not published", n)
	case *failed == nil && n < skip:
		return fmt.Errorf("standard input has %s, and producer %s has published %d before: it is not the same input, "+
			"and nothing was published", cli.Counted(n, "line"), p.Producer, skip)
	}
	return *failed
}

// UntilFailure returns a context that ends with ctx, and when a message could not be published.
func (p *Publication) UntilFailure(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// pace lets messages pass at a rate.
type pace struct {
	rate  float64 // per second; 0: all at once
	start time.Time
	n     int64 // that have passed
}

// wait waits for the turn of the next message. It returns false if ctx ended before.
func (p *pace) wait(ctx context.Context) bool {
	if p.rate > 0 {
		due := p.start.Add(time.Duration(float64(p.n) / p.rate * float64(time.Second)))
		p.n++
		if pause := time.Until(due); pause > 0 {
			timer := time.NewTimer(pause)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
	}
	return ctx.Err() == nil
}
