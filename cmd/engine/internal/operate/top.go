package operate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/clip"
	"penstock/internal/node/health"
	"penstock/internal/server/api"
)

const (
	// leastTopInterval keeps a command that somebody forgot from loading the node.
	leastTopInterval = 200 * time.Millisecond
	// topHeaderLines are the lines of a screen above the rows, with the line that is left free below them.
	topHeaderLines = 6
)

// topRow is one channel, or a topic without channels, between two looks at the nodes. Rates are per second.
type topRow struct {
	Topic         string  `json:"topic"`
	Channel       string  `json:"channel"` // empty: the topic has none
	Published     float64 `json:"published_per_second"`
	Entered       float64 `json:"entered_per_second"`   // messages that came into the channel
	Confirmed     float64 `json:"confirmed_per_second"` // what entered, less what the depth grew
	Requeued      float64 `json:"requeued_per_second"`
	TimedOut      float64 `json:"timed_out_per_second"`
	Depth         int64   `json:"depth"`
	InFlightCount int     `json:"in_flight_count"`
	DeferredCount int     `json:"deferred_count"`
	ClientCount   int     `json:"client_count"`
	Paused        bool    `json:"paused"`
	LagSeconds    float64 `json:"lag_seconds"` // until the channel is empty at this rate; -1: it never is
	State         string  `json:"state"`       // see TopicNumbers.OwnState and StateOf
}

// topLook is what one refresh prints as JSON.
type topLook struct {
	Time      time.Time `json:"time"`
	Seconds   float64   `json:"seconds"` // over which the rates were measured
	RowCount  int       `json:"row_count"`
	Rows      []topRow  `json:"rows"` // at most --lines
	Published float64   `json:"published_per_second"`
	Depth     int64     `json:"depth"`
	Missing   string    `json:"missing,omitempty"` // which nodes did not say their figures
	Health    string    `json:"health,omitempty"`  // what is wrong with the node that was asked, or with its cluster
}

// TopOf computes rates from two looks at all topics. Counters begin at zero when a node starts or a leadership moves:
// where a counter is smaller than before, the rate is 0. It is also 0 where other partitions of a topic are served than
// before, whose counters would look like new messages.
func TopOf(before, after []cli.TopicNumbers, elapsed time.Duration, most int) topLook {
	look := topLook{Seconds: elapsed.Seconds(), Rows: []topRow{}}
	was := map[string]*cli.TopicNumbers{}
	for i := range before {
		was[before[i].Name] = &before[i]
	}
	for i := range after {
		t := &after[i]
		old := cmp.Or(was[t.Name], &cli.TopicNumbers{})
		if !slices.Equal(api.Unserved(old.Partitions, old.Served), api.Unserved(t.Partitions, t.Served)) {
			old = t
		}
		row := topRow{
			Topic: t.Name, Paused: t.Paused, State: t.OwnState(),
			Published: rate(old.MessageCount, t.MessageCount, elapsed),
		}
		look.Published += row.Published
		if len(t.Channels) == 0 {
			row.Depth = t.Depth
			look.Depth += t.Depth
			look.Rows = append(look.Rows, row)
		}
		for _, c := range t.Channels {
			var had cli.ChannelNumbers
			if i := slices.IndexFunc(old.Channels, func(h cli.ChannelNumbers) bool { return h.Name == c.Name }); i >= 0 {
				had = old.Channels[i]
			}
			look.Depth += c.Depth
			row.State = t.StateOf(&c)
			look.Rows = append(look.Rows, channelRow(row, &had, &c, elapsed))
		}
	}
	slices.SortStableFunc(look.Rows, func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.Published+b.Confirmed, a.Published+a.Confirmed), cmp.Compare(b.Depth, a.Depth))
	})
	look.RowCount = len(look.Rows)
	look.Rows = look.Rows[:min(most, len(look.Rows))]
	return look
}

func channelRow(row topRow, had, c *cli.ChannelNumbers, elapsed time.Duration) topRow {
	row.Channel, row.Paused = c.Name, row.Paused || c.Paused
	row.Depth, row.InFlightCount, row.DeferredCount, row.ClientCount = c.Depth, c.InFlightCount, c.DeferredCount,
		c.ClientCount
	row.Entered = rate(had.MessageCount, c.MessageCount, elapsed)
	row.Requeued, row.TimedOut = rate(had.RequeueCount, c.RequeueCount, elapsed),
		rate(had.TimeoutCount, c.TimeoutCount, elapsed)
	grown := float64(c.Depth-had.Depth) / elapsed.Seconds()
	row.Confirmed = max(0, row.Entered-grown)
	switch {
	case row.Depth == 0:
	case row.Confirmed <= 0:
		row.LagSeconds = -1
	default:
		row.LagSeconds = float64(row.Depth) / row.Confirmed
	}
	return row
}

func rate(before, after uint64, elapsed time.Duration) float64 {
	if after < before || elapsed <= 0 {
		return 0
	}
	return float64(after-before) / elapsed.Seconds()
}

// TopCommand shows again and again what all topics and channels do.
func TopCommand() *cobra.Command {
	o := new(operator)
	var interval time.Duration
	var once bool
	var lines int
	cmd := o.Action("top", "Show rates, depths and lags of all channels, refreshed each second", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			if interval < leastTopInterval || lines < 0 {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("--interval must be at least %v, and --lines 0 or "+
					"more", leastTopInterval))
			}
			return o.top(ctx, interval, once, lines)
		})
	cmd.Long = "Show rates, depths and lags of all channels, the busiest first, refreshed each second. In a cluster,\n" +
		"all live nodes are asked. The lag is the time until the channel is empty if nothing more is published.\n\n" +
		"On a terminal the picture is redrawn; q ends it. Elsewhere, each refresh prints further lines, with --json one\n" +
		"JSON object on a line."
	o.Flags(cmd)
	values.DurationVar(cmd.Flags(), &interval, "interval", time.Second,
		"time between two refreshes, and over which rates are measured")
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	cmd.Flags().IntVar(&lines, "lines", 0,
		"maximum number of rows; 0 means as many as the terminal has, elsewhere 20")
	return cmd
}

// top shows a picture after each interval until ctx ends, or q is typed.
func (o *operator) top(ctx context.Context, interval time.Duration, once bool, lines int) error {
	redraws := cli.IsTerminal(o.Out) && !once && !o.AsJSON
	if redraws {
		var stop func()
		ctx, stop = o.untilQ(ctx)
		defer stop()
	}
	before, _, err := o.TopicsNow(ctx) // the next look says what is missing
	if err != nil {
		return err
	}
	at := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		after, missing, err := o.TopicsNow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		now := time.Now()
		look := TopOf(before, after, now.Sub(at), o.topLines(lines))
		if look.Time = now.UTC(); missing != nil {
			look.Missing = missing.Error()
		}
		if v, err := o.Client.Health(ctx); err == nil {
			look.Health = Unwell(v)
		}
		if o.AsJSON {
			err = json.NewEncoder(o.Out).Encode(&look)
		} else {
			err = PrintTop(o.Out, &look, redraws)
		}
		if err != nil || once {
			return cmp.Or(err, missing)
		}
		before, at = after, now
	}
}

// Unwell is the line about the node that was asked: what is wrong with it, or what its clients notice all the same.
func Unwell(v *health.Verdict) string {
	if v.Healthy {
		return v.Note
	}
	return v.Health
}

// topLines returns how many rows a picture has.
func (o *operator) topLines(said int) int {
	if said > 0 {
		return said
	}
	if file, ok := clip.Unwrap(o.Out).(*os.File); ok {
		if _, rows, err := term.GetSize(int(file.Fd())); err == nil && rows > topHeaderLines {
			return rows - topHeaderLines
		}
	}
	return 20
}

// PrintTop prints a picture. redraws: it replaces the one before, on a terminal in raw mode.
func PrintTop(w io.Writer, look *topLook, redraws bool) error {
	var b bytes.Buffer
	more := ""
	if look.RowCount > len(look.Rows) {
		more = fmt.Sprintf(", the first %d of %d rows", len(look.Rows), look.RowCount)
	}
	fmt.Fprintf(&b, "%s  %.0f msg/s published, %d waiting%s\n", cli.Stamp(look.Time), look.Published, look.Depth, more)
	if look.Missing != "" {
		fmt.Fprintln(&b, look.Missing)
	}
	if look.Health != "" {
		fmt.Fprintln(&b, cutTo(look.Health, redraws, cli.WidthOf(w)))
	}
	width := 0 // no limit
	if cli.IsTerminal(w) {
		width = cli.WidthOf(w)
	}
	if err := cli.WriteFitting(&b, topColumns, look.Rows, width); err != nil {
		return err
	}
	if !redraws {
		_, err := b.WriteTo(w)
		return err
	}
	var plain bytes.Buffer
	if _, err := (&clip.Writer{To: &plain}).Write(b.Bytes()); err != nil {
		return err
	}
	text := strings.ReplaceAll(plain.String(), "\n", "\r\n") // the terminal is in raw mode
	// First to the upper left corner, and clear.
	_, err := io.WriteString(clip.Unwrap(w).(io.Writer), "\x1b[H\x1b[2J"+text)
	return err
}

// cutTo cuts a line to the width of a terminal whose picture is redrawn: penstock cluster health has the rest.
func cutTo(line string, redraws bool, width int) string {
	const more = " ..."
	if letters := []rune(line); redraws && len(letters) > width && width > len(more) {
		return string(letters[:width-len(more)]) + more
	}
	return line
}

func lagText(r *topRow) string {
	switch {
	case r.Channel == "":
		return "-"
	case r.LagSeconds < 0:
		return "stands still"
	}
	return time.Duration(r.LagSeconds * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// untilQ ends the context when q or Ctrl-C is typed, if the standard input is a terminal. The caller must call stop,
// which gives the terminal back as it was.
func (o *operator) untilQ(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	file, ok := o.In.(*os.File)
	if !ok || !cli.IsTerminal(file) {
		return ctx, cancel
	}
	old, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return ctx, cancel
	}
	go func() { // ends with the process: a read from a terminal cannot be interrupted
		key := make([]byte, 1)
		for {
			if _, err := file.Read(key); err != nil || errors.Is(ctx.Err(), context.Canceled) {
				return
			}
			if key[0] == 'q' || key[0] == 3 {
				cancel()
				return
			}
		}
	}()
	return ctx, func() {
		cancel()
		_ = term.Restore(int(file.Fd()), old)
	}
}

// topColumns are the columns of top's picture.
var topColumns = []cli.Column[topRow]{
	cli.TextCol("TOPIC", 0, func(r *topRow) string { return r.Topic }),
	cli.TextCol("CHANNEL", 0, func(r *topRow) string { return cli.Dash(r.Channel) }),
	cli.Col("PUB/S", 0, func(r *topRow) string { return fmt.Sprintf("%.0f", r.Published) }),
	cli.Col("FIN/S", 0, func(r *topRow) string { return fmt.Sprintf("%.0f", r.Confirmed) }),
	cli.Col("REQ/S", 4, func(r *topRow) string { return fmt.Sprintf("%.0f", r.Requeued) }),
	cli.Col("TIMEOUT/S", 5, func(r *topRow) string { return fmt.Sprintf("%.0f", r.TimedOut) }),
	cli.Col("DEPTH", 0, func(r *topRow) string { return fmt.Sprint(r.Depth) }),
	cli.Col("IN FLIGHT", 1, func(r *topRow) string { return fmt.Sprint(r.InFlightCount) }),
	cli.Col("DEFERRED", 3, func(r *topRow) string { return fmt.Sprint(r.DeferredCount) }),
	cli.Col("CONSUMERS", 2, func(r *topRow) string { return fmt.Sprint(r.ClientCount) }),
	cli.Col("LAG", 0, lagText),
	cli.Col("STATE", 0, func(r *topRow) string { return r.State }),
}
