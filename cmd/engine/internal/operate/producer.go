package operate

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// ProducerCommand has the commands of penstock producer below it.
func ProducerCommand() *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "producer",
		Short: "Show and remove names of producers",
		Long: "Show and remove the names under which producers number their messages, so that each is stored once.\n" +
			"A partition knows 4096 of them at most, and 1024 of one token; one that was unused for 7 days makes\n" +
			"room for another. If the node requires a token, name a file that holds it with --token-file: the\n" +
			"token must administer the whole topic.",
	}
	o.Flags(cmd)
	cmd.AddCommand(o.producerListCommand(), o.AsksBefore(o.producerRemoveCommand(), 1, o.producerRemoveLoses))
	return cmd
}

// producers asks for the producers of args: a topic, and perhaps a name.
func (o *operator) producers(ctx context.Context, args []string) (rows api.ProducerRows, err error) {
	q := cli.QueryOf(args[0], "")
	if len(args) > 1 {
		q.Set("producer", args[1])
	}
	return rows, o.Client.Get(ctx, "/topic/producers", q, &rows)
}

func (o *operator) producerListCommand() *cobra.Command {
	cmd := o.Action("list TOPIC [NAME]", "List the producers that a topic knows", cobra.RangeArgs(1, 2),
		func(ctx context.Context, args []string) error {
			rows, err := o.producers(ctx, args)
			if err != nil {
				return err
			}
			return o.Print(&rows, func(w io.Writer) error { return printProducers(w, &rows, len(args) > 1) })
		})
	cmd.Long = "List the producers with a name that a topic knows: who owns the name, how many partitions know it,\n" +
		"how often it was opened, the number of its next message, and when it was used last, by the times of\n" +
		"the log. Of several partitions the newest is shown; with a name, each. A name that cannot be printed\n" +
		"is in quotes, and is given to producer remove so. OWNER is the token that opened it; - is everybody's."
	return cmd
}

// printProducers prints a row for each name and owner, or for each partition.
func printProducers(w io.Writer, rows *api.ProducerRows, each bool) error {
	t := cli.Table(w)
	fmt.Fprintln(t, "PRODUCER\tOWNER\tPARTITIONS\tLAST USED\tEPOCH\tNEXT NUMBER")
	for i := 0; i < len(rows.Producers); {
		first, newest := rows.Producers[i], rows.Producers[i]
		where := []string{}
		for ; i < len(rows.Producers); i++ {
			p := rows.Producers[i]
			if p.Producer != first.Producer || p.Owner != first.Owner || each && len(where) > 0 {
				break
			}
			if where = append(where, strconv.Itoa(int(p.Partition))); p.Used.After(newest.Used) {
				newest = p
			}
		}
		parts := strings.Join(where, ",")
		if len(where) > 4 {
			parts = cli.Counted(len(where), "partition")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\n", first.Producer, cli.Dash(first.Owner), parts,
			newest.Used.Local().Format(time.DateTime), newest.Epoch, newest.Sequence)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if rows.Nameless > 0 {
		fmt.Fprintf(w, "%s without a name\n", cli.Counted(rows.Nameless, "producer"))
	}
	if rows.More {
		fmt.Fprintf(w, "there are more: penstock producer list TOPIC NAME shows one\n")
	}
	return nil
}

func (o *operator) producerRemoveCommand() *cobra.Command {
	cmd := o.Action("remove TOPIC NAME", "Let a topic forget a producer", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			var done struct {
				Removed int `json:"removed"`
			}
			q := url.Values{"topic": {args[0]}, "producer": {args[1]}}
			if err := o.Client.Post(ctx, "/producer/remove", q, nil, &done); err != nil {
				return err
			}
			return o.Done("producer %s was removed from %s of topic "+
				"%s", args[1], cli.Counted(done.Removed, "partition"), args[0])
		})
	cmd.Long = "Let all partitions of a topic forget a producer's name, whosever it is. No message is lost. But what\n" +
		"a program sends again under that name is not recognized afterwards, and stored twice: remove names\n" +
		"that no program uses any more. Whoever opens the name next owns it, and begins with number 0."
	return cmd
}

// producerRemoveLoses says what is lost with a name.
func (o *operator) producerRemoveLoses(ctx context.Context, args []string) (string, error) {
	rows, err := o.producers(ctx, args)
	if err != nil {
		return "", err
	}
	var used time.Time
	for i := range rows.Producers {
		if p := &rows.Producers[i]; p.Used.After(used) {
			used = p.Used
		}
	}
	if used.IsZero() {
		return "", fmt.Errorf("topic %s knows no producer %s", args[0], args[1])
	}
	return fmt.Sprintf("Producer %s of topic %s was used last at %s, and %s know it. What it sends again afterwards is "+
		"stored twice.", args[1], args[0], used.Local().Format(time.DateTime),
		cli.Counted(len(rows.Producers), "partition")), nil
}
