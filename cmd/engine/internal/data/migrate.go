package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/internal/migrate"
)

// migration holds the flags of `penstock migrate nsqd`.
type migration struct {
	dataPath    string
	to          string
	http        string
	state       string
	client      client.Client
	dryRun      bool
	skipDamaged bool
	unlisted    bool
	again       bool
}

// MigrateCommand has the commands that import the data of other servers below it.
func MigrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Import data from another system"}
	cmd.AddCommand(migrateNSQDCommand())
	return cmd
}

func migrateNSQDCommand() *cobra.Command {
	m := new(migration)
	cmd := &cobra.Command{
		Use:   "nsqd",
		Short: "Import topics, channels and backlogs from the data directory of a stopped nsqd",
		Long: "Import topics, channels and backlogs from the data directory of a stopped nsqd into the data directory of\n" +
			"a stopped node (--to) or into a running node (--http-address). nsqd's directory is not changed. To continue\n" +
			"an interrupted import, run the command again: no message is imported twice, except that with\n" +
			"--http-address the last batch may be. Message ids, publish times, attempts and the remaining delays of\n" +
			"deferred messages are not imported.\n\n" +
			"With --to, every channel gets exactly its own backlog. With --http-address, a topic is refused before any\n" +
			"of its messages is published if one of its channels would get messages that it did not have.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f := cmd.Flags(); f.Changed("http-address") || f.Changed("http") {
				m.http = m.client.Address
			}
			return m.run(cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.dataPath, "data-path", "", "nsqd's data directory")
	f.StringVar(&m.to, "to", "", "data directory of a stopped node; created if missing")
	m.client.Add(f, "http")
	f.StringVar(&m.state, "state", "", "with --http-address, file that records what was imported (default ./"+
		migrate.StateFile+
		"); with --to, the record is in that directory")
	f.BoolVar(&m.dryRun, "dry-run", false, "only show what nsqd's directory contains; import nothing")
	f.BoolVar(&m.skipDamaged, "skip-damaged", false, "exit with 0 even if damaged data was left out")
	f.BoolVar(&m.unlisted, "unlisted", false, "also import the files of topics and channels that nsqd.dat does not name")
	f.BoolVar(&m.again, "again", false,
		"import the directory again if nsqd has run in it since an earlier import, including messages imported then")
	return cmd
}

func (m *migration) run(cmd *cobra.Command) error {
	if err := m.check(); err != nil {
		return cli.Fail(cli.ExitUsage, err)
	}
	ctx, stop := cli.UntilSignal(cmd.Context())
	defer stop()
	source, err := migrate.Open(m.dataPath, migrate.SourceOptions{Running: m.dryRun, Unlisted: m.unlisted})
	if err != nil {
		return cli.Fail(cli.ExitData, err)
	}
	defer source.Close()
	stderr := cmd.ErrOrStderr()
	bar, finish := cli.CountBar(stderr, -1, "reading")
	counts, err := migrate.Scan(ctx, source, bar)
	finish()
	if err != nil {
		return cli.Fail(cli.ExitData, err)
	}
	if err := printSource(cmd.OutOrStdout(), stderr, source, counts); err != nil {
		return cli.Fail(cli.ExitOther, err)
	}
	if !m.dryRun {
		if err := m.into(ctx, cmd, source, counts); err != nil {
			return err
		}
	}
	return m.damaged(source, counts)
}

func (m *migration) check() error {
	switch {
	case m.dataPath == "":
		return errors.New("--data-path is missing: nsqd's data directory")
	case m.to != "" && m.http != "":
		return errors.New("--to and --http-address exclude each other")
	case m.to == "" && m.http == "" && !m.dryRun:
		return errors.New(
			"say where to: --to DIRECTORY of a stopped node, or --http-address of a running one; or look only, with --dry-run")
	case m.to != "" && m.state != "":
		return errors.New("--state is for --http-address: with --to the record is in that directory")
	}
	if m.to != "" {
		if same(m.to, m.dataPath) {
			return errors.New(
				"--to is nsqd's own directory, in which nothing may be written: name another one, such as a new one inside it")
		}
		return nil
	}
	if m.state == "" {
		m.state = migrate.StateFile
	}
	if same(filepath.Dir(m.state), m.dataPath) && !m.dryRun {
		return errors.New("the record of imports would be written into nsqd's directory: name another file with --state")
	}
	return nil
}

func same(a, b string) bool {
	x, err := filepath.Abs(a)
	if err != nil {
		return false
	}
	y, err := filepath.Abs(b)
	if err != nil {
		return false
	}
	if sa, err := os.Stat(x); err == nil {
		if sb, err := os.Stat(y); err == nil {
			return os.SameFile(sa, sb)
		}
	}
	return x == y
}

// into imports the source into the target and prints the result.
func (m *migration) into(
	ctx context.Context, cmd *cobra.Command, source *migrate.Source, counts map[*migrate.Queue]migrate.Counts,
) error {
	total, largest := int64(0), 0
	for _, q := range source.Queues() {
		total += counts[q].Messages
		largest = max(largest, counts[q].Largest)
	}
	target, closeTarget, err := m.target(ctx, cmd.ErrOrStderr(), largest)
	if err != nil {
		return err
	}
	published, done, err := int64(0), false, error(nil)
	state, err := migrate.LoadState(m.state)
	if err == nil {
		bar, finish := cli.CountBar(cmd.ErrOrStderr(), total, "importing")
		published, done, err = migrate.Import(ctx, source, counts, target, state, migrate.Options{
			Again: m.again, Progress: bar,
		})
		finish()
	}
	if err = errors.Join(err, closeTarget()); err != nil {
		return cli.Fail(cli.ExitOther, fmt.Errorf("%w; %s published by this run: run the command again to go on", err,
			cli.InNumber(published, "message was", "messages were")))
	}
	text := fmt.Sprintf("imported: %s published to %s\n", cli.Counted(published, "message"), m.to+m.http)
	if !done {
		text = fmt.Sprintf("this directory was imported before (recorded in %s): nothing was done\n", m.state)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), text)
	return err
}

func (m *migration) target(ctx context.Context, stderr io.Writer, largest int) (migrate.Target, func() error, error) {
	if m.http != "" {
		_, err := m.client.Token()
		if err != nil {
			return nil, nil, cli.Fail(cli.ExitUsage, fmt.Errorf("the token file cannot be used: %w", err))
		}
		return &nodeTarget{&m.client}, func() error { return nil }, nil
	}
	d, err := OpenDirTarget(ctx, m.to, largest, stderr)
	if err != nil {
		return nil, nil, cli.Fail(cli.ExitData, err)
	}
	m.state = filepath.Join(m.to, migrate.StateFile)
	return d, d.Close, nil
}

func (m *migration) damaged(source *migrate.Source, counts map[*migrate.Queue]migrate.Counts) error {
	places, lost := 0, int64(0)
	for _, q := range source.Queues() {
		for _, d := range counts[q].Damage {
			places++
			lost += d.Bytes
		}
	}
	if places == 0 || m.skipDamaged {
		return nil
	}
	what := "everything that can be read was imported"
	if m.dryRun {
		what = "an import takes everything that can be read"
	}
	return cli.Fail(cli.ExitOther, fmt.Errorf("%s with %s cannot be read, and what follows them in their files is left "+
		"out: %s; --skip-damaged accepts this", cli.Counted(places, "damaged place"), cli.Counted(lost, "byte"), what))
}

// printSource prints one line per queue, and every damaged place and note.
func printSource(w, notes io.Writer, s *migrate.Source, counts map[*migrate.Queue]migrate.Counts) error {
	tw := cli.Table(w)
	fmt.Fprintln(tw, "TOPIC\tCHANNEL\tMESSAGES\tBYTES\tDAMAGED\tSTATE")
	total := migrate.Counts{}
	line := func(topic, channel string, c migrate.Counts, state string) {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%s\n", topic, channel, c.Messages, c.Bytes, len(c.Damage), state)
		total.Messages += c.Messages
		total.Bytes += c.Bytes
		total.Damage = append(total.Damage, c.Damage...)
		total.Notes = append(total.Notes, c.Notes...)
	}
	for _, t := range s.Topics {
		line(t.Name, "-", counts[t.Queue], pausedText(t.Paused))
		for _, c := range t.Channels {
			line(t.Name, c.Name, counts[c.Queue], pausedText(c.Paused))
		}
	}
	for _, q := range s.Unlisted {
		line(q.Topic, orDash(q.Channel), counts[q], "not in nsqd.dat: left out without --unlisted")
	}
	fmt.Fprintf(tw, "total\t\t%d\t%d\t%d\t\n", total.Messages, total.Bytes, len(total.Damage))
	if err := tw.Flush(); err != nil {
		return err
	}
	if s.Running {
		fmt.Fprintln(notes, "note: an nsqd uses the directory: what it holds in memory is not shown, and an import is only "+
			"possible when it is stopped")
	}
	for _, n := range append(s.Notes, total.Notes...) {
		fmt.Fprintln(notes, "note:", n)
	}
	for _, d := range total.Damage {
		fmt.Fprintln(notes, "damaged:", d)
	}
	return nil
}

func pausedText(paused bool) string {
	if paused {
		return "paused"
	}
	return ""
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
