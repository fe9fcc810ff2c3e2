package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"penstock/batch"
	nodes "penstock/client"
)

// readMessage is a message as read prints it with --format json. Of a text and its base64 form only one is there: the
// text if the bytes are UTF-8.
type readMessage struct {
	ID         string       `json:"id"`
	Partition  uint32       `json:"partition"`
	Number     uint64       `json:"number"`    // in the partition, from 0
	Timestamp  time.Time    `json:"timestamp"` // when it was published
	Key        *string      `json:"key,omitempty"`
	KeyBase64  []byte       `json:"key_base64,omitempty"`
	Headers    []readHeader `json:"headers,omitempty"`
	Body       *string      `json:"body,omitempty"`
	BodyBase64 []byte       `json:"body_base64,omitempty"`
}

type readHeader struct {
	Name        string  `json:"name"` // invalid UTF-8 is replaced
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

// reading is one run of read.
type reading struct {
	native nativeFlags

	partition int // negative: all
	from      string
	count     uint64 // 0: no limit
	follow    bool
	format    string

	mu   sync.Mutex // guards what follows: with --follow, partitions are read at once
	out  *bufio.Writer
	left uint64 // how many messages may still be printed, if count is not 0
	line []byte
}

func readCommand() *cobra.Command {
	r := &reading{format: "body"}
	cmd := &cobra.Command{
		Use:   "read TOPIC",
		Short: "Print the messages that a topic holds",
		Long: strings.TrimSpace(`
Print the messages that a topic holds, one per line, and end behind the newest one. It reads the partitions directly: no
channel takes part, nothing is confirmed, and other readers and consumers do not notice. Within a partition, messages
have the order in which they were stored. Messages that retention removed are not there any more.

PLACE is one of:
  oldest  the oldest message of each partition
  newest  behind the newest message of each partition, for --follow
  ID      the message with these 16 hex digits; only its partition is read
  TIME    the first message stored at a time such as 2026-01-31T12:00:00Z or later, in each partition

FORMAT is one of:
  body  the bytes of the message, and the end of a line
  json  an object with id, partition, number, timestamp, key, headers and body
  hex   the bytes of the message, as hex digits`),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			signal.Ignore(syscall.SIGPIPE) // who reads the output may have seen enough
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			r.out = bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
			err := r.run(ctx, args[0], cmd.ErrOrStderr())
			if errors.Is(err, syscall.EPIPE) {
				return nil
			}
			return withExitCode(err)
		},
	}
	f := cmd.Flags()
	r.native.add(f)
	f.IntVar(&r.partition, "partition", -1, "partition to read; without this flag, all of them")
	f.StringVar(&r.from, "from", "oldest", "`PLACE` to begin at: oldest, newest, an ID or a TIME")
	f.Uint64Var(&r.count, "count", 0, "how many messages to print; 0 means all")
	f.BoolVar(&r.follow, "follow", false, "do not end behind the newest message, but wait for more")
	f.Var(choice(&r.format, "body", "json", "hex"), "format", "how to print a message")
	completesChoices(cmd)
	return cmd
}

// place reads --from. partition is that of an ID, otherwise -1.
func place(text string) (from nodes.From, partition int, err error) {
	switch text {
	case "oldest":
		return nodes.FromOldest(), -1, nil
	case "newest":
		return nodes.FromNewest(), -1, nil
	}
	if id, err := batch.ParseID([]byte(text)); err == nil {
		return nodes.FromID(id), int(id.Partition()), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return from, 0, &exitError{exitUsage, fmt.Errorf("--from %s is neither oldest nor newest, nor an ID of 16 hex "+
			"digits, nor a time such as 2026-01-31T12:00:00Z", text)}
	}
	return nodes.FromTime(at), -1, nil
}

// errEnough ends a run that has printed as many messages as it should.
var errEnough = errors.New("enough")

func (r *reading) run(ctx context.Context, topic string, log io.Writer) error {
	from, partition, err := place(r.from)
	switch {
	case err != nil:
		return err
	case r.partition >= 0 && partition >= 0 && partition != r.partition:
		return &exitError{exitUsage, fmt.Errorf("--from %s is in partition %d, and --partition is %d", r.from, partition,
			r.partition)}
	case partition < 0:
		partition = r.partition
	}
	c, err := r.native.dial(ctx, log)
	if err != nil {
		return err
	}
	defer c.Close()
	partitions := []int{partition}
	if partition < 0 {
		n, err := c.Partitions(ctx, topic)
		if err != nil {
			return err
		}
		partitions = make([]int, n)
		for i := range partitions {
			partitions[i] = i
		}
	}
	r.left = r.count
	if r.follow {
		err = r.all(ctx, c, topic, partitions, from)
	} else {
		for _, p := range partitions {
			if err = r.one(ctx, c, topic, p, from); err != nil {
				break
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if flushed := r.out.Flush(); flushed != nil {
		return flushed
	}
	var gone *nodes.TrimmedError
	switch {
	case errors.Is(err, errEnough), ctx.Err() != nil && r.follow: // Ctrl-C is how --follow ends
		return nil
	case ctx.Err() != nil:
		return errors.New("interrupted before the newest message was reached")
	case errors.As(err, &gone):
		return fmt.Errorf("messages before %v were removed by retention: --from oldest begins with what is left", gone.First)
	}
	return err
}

// all reads partitions at once, until ctx ends or one of them fails.
func (r *reading) all(ctx context.Context, c *nodes.Client, topic string, partitions []int, from nodes.From) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, p := range partitions {
		wg.Go(func() { cancel(r.one(ctx, c, topic, p, from)) })
	}
	wg.Wait()
	return context.Cause(ctx)
}

// endPause is how long a reader waits for a message before it looks whether it has read all there are.
const endPause = 50 * time.Millisecond

// one reads one partition: with --follow until ctx ends, otherwise until it has the message that was the newest when
// the partition's leader first answered.
func (r *reading) one(ctx context.Context, c *nodes.Client, topic string, partition int, from nodes.From) error {
	reader, err := c.Reader(ctx, topic, partition, from)
	if err != nil {
		return err
	}
	defer reader.Close()
	end, known := nodes.ID(0), false
	reached := func() bool {
		if r.follow {
			return false
		}
		if !known {
			end, known = reader.Newest()
		}
		at, ok := reader.Position()
		return known && ok && at >= end
	}
	for !reached() {
		// There may be no message at all, which only the reader's position tells.
		brief, cancel := context.WithTimeoutCause(ctx, endPause, errNothingYet)
		for err = nil; err == nil && !reached(); {
			err = r.printNext(brief, reader)
		}
		if cancel(); err != nil && !errors.Is(err, errNothingYet) {
			return err
		}
	}
	return nil
}

// errNothingYet says that no message came within endPause.
var errNothingYet = errors.New("nothing yet")

func (r *reading) printNext(ctx context.Context, reader *nodes.Reader) error {
	m, err := reader.Next(ctx)
	if err != nil {
		return err
	}
	newest, ok := reader.Newest()
	return r.print(&m, ok && m.ID+1 >= newest)
}

// print prints a message. With flush, what was printed is written at once: no other message follows just now.
func (r *reading) print(m *nodes.Message, flush bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > 0 && r.left == 0 {
		return errEnough
	}
	line := r.line[:0]
	switch r.format {
	case "hex":
		line = hex.AppendEncode(line, m.Body)
	case "json":
		text, err := json.Marshal(jsonOf(m))
		if err != nil {
			return err
		}
		line = append(line, text...)
	default:
		line = append(line, m.Body...)
	}
	r.line = append(line, '\n')
	if _, err := r.out.Write(r.line); err != nil {
		return err
	}
	r.left--
	if r.count > 0 && r.left == 0 {
		return errEnough
	}
	if flush {
		return r.out.Flush()
	}
	return nil
}

func jsonOf(m *nodes.Message) *readMessage {
	out := &readMessage{
		ID: m.ID.String(), Partition: m.ID.Partition(), Number: uint64(m.ID.MsgID()), Timestamp: m.Time.UTC(),
	}
	out.Body, out.BodyBase64 = textOr(m.Body)
	if m.Key != nil {
		out.Key, out.KeyBase64 = textOr(m.Key)
	}
	for _, h := range m.Headers {
		header := readHeader{Name: string(h.Key)}
		header.Value, header.ValueBase64 = textOr(h.Value)
		out.Headers = append(out.Headers, header)
	}
	return out
}

// textOr returns bytes that are valid UTF-8 as text, and other bytes unchanged.
func textOr(b []byte) (text *string, raw []byte) {
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	return nil, b
}
