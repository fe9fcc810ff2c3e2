package definitions

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/operate"
	"penstock/internal/cluster/admin"
	"penstock/internal/node/fold"
)

// applied is what `definitions apply --json` prints.
type applied struct {
	DryRun  bool               `json:"dry_run"`
	Changes []definitionChange `json:"changes"`
	Error   string             `json:"error,omitempty"` // of the first change that is not done
}

func (o *operator) definitionsApply() *cobra.Command {
	var dryRun, prune, yes bool
	cmd := o.Action("apply FILE", "Create and change topics and channels as a document says", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			want, err := readDefinitions(args[0], o.In)
			if err != nil {
				return cli.Fail(cli.ExitUsage, err)
			}
			is, err := o.definitions(ctx)
			if err != nil {
				return err
			}
			changes, err := changesTo(is, want, prune)
			if err != nil {
				return cli.Fail(cli.ExitUsage, err)
			}
			if dryRun {
				return o.printApplied(&applied{DryRun: true, Changes: changes})
			}
			if err := o.confirmPrune(changes, args[0], yes); err != nil {
				return err
			}
			return o.apply(ctx, changes)
		})
	cmd.Long = "Create and change topics and channels as a document says, which penstock definitions export printed,\n" +
		"or somebody wrote: JSON or TOML; - means standard input. What the document does not name stays as it is, and\n" +
		"applying it again changes nothing. The whole document is checked first: a wrong one changes nothing.\n\n" +
		"With --prune, topics and channels that the document does not name are deleted with their messages, except the\n" +
		"dead letters of channels that stay. Whether topics or channels are paused, or channels skip, is no definition:\n" +
		"it is neither exported nor changed. The exit code is 1 if a change failed; what was done before is named."
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change, and change nothing")
	cmd.Flags().BoolVar(&prune, "prune", false, "delete topics and channels that the document does not name; asks first")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before --prune deletes messages")
	return cmd
}

// confirmPrune asks before anything is deleted. Where nobody can answer, --yes is needed.
func (o *operator) confirmPrune(changes []definitionChange, file string, yes bool) error {
	count := 0
	for i := range changes {
		if strings.HasPrefix(changes[i].Action, "delete") {
			count++
		}
	}
	if count == 0 || yes {
		return nil
	}
	pruned := cli.InNumber(count, "topic or channel", "topics and channels")
	if file == "-" || !cli.IsTerminal(o.In) {
		return cli.Fail(cli.ExitUsage, fmt.Errorf("--prune would delete %s with all messages and asks before it does: "+
			"say --yes where nobody can answer; nothing was changed", pruned))
	}
	for i := range changes {
		fmt.Fprintln(o.Prompt, changes[i].String())
	}
	fmt.Fprintf(o.Prompt, "%s will be DELETED with all messages. Type prune to continue: ", pruned)
	return cli.Typed(o.In, "prune", "nothing was changed")
}

// apply does one change after the other, and stops at the first that fails.
func (o *operator) apply(ctx context.Context, changes []definitionChange) error {
	result := &applied{Changes: changes}
	done := 0
	var failed error
	for i := range changes {
		if failed = o.applyOne(ctx, &changes[i]); failed != nil {
			result.Error = failed.Error()
			break
		}
		changes[i].Done = true
		done++
	}
	if err := o.printApplied(result); err != nil {
		return err
	}
	if failed != nil {
		return cli.Fail(cli.ExitOther, fmt.Errorf("%s failed; %d of %s were done before and stay, and applying the "+
			"document again continues: %w", strings.ReplaceAll(changes[done].Action, "-", " "), done,
			cli.Counted(len(changes), "change"), failed))
	}
	return nil
}

func (o *operator) printApplied(a *applied) error {
	if o.AsJSON {
		a.Changes = append([]definitionChange{}, a.Changes...) // never null
		return cli.PrintJSON(o.Out, a)
	}
	for i := range a.Changes {
		state := ""
		if !a.DryRun && !a.Changes[i].Done {
			state = "  (not done)"
		}
		fmt.Fprintf(o.Out, "%s%s\n", a.Changes[i].String(), state)
	}
	text := cli.Counted(len(a.Changes), "change")
	switch {
	case len(a.Changes) == 0:
		text = "nothing differs"
	case a.DryRun:
		text += " would be made; nothing was changed"
	}
	_, err := fmt.Fprintln(o.Out, text)
	return err
}

func (o *operator) applyOne(ctx context.Context, c *definitionChange) error {
	q := cli.QueryOf(c.Topic, c.Channel)
	switch c.Action {
	case "create-topic":
		if c.topic.Partitions != 0 {
			q.Set("partitions", strconv.Itoa(c.topic.Partitions))
		}
		if c.topic.Replicas != 0 {
			q.Set("replicas", strconv.Itoa(c.topic.Replicas))
		}
		return o.Client.Post(ctx, "/topic/create", q, nil, nil)
	case "set-replicas":
		body := &admin.SetReplicas{Topic: c.Topic, Replicas: c.topic.Replicas}
		return o.Client.Post(ctx, "/cluster/set-replicas", nil, body, nil)
	case "set-topic":
		now, err := operate.TopicSettingsOf(ctx, &o.Client, c.Topic)
		if err != nil {
			return err
		}
		next := *now
		if c.topic.Settings != nil {
			next = *c.topic.Settings
		}
		next.Version, next.Partitions = now.Version, max(c.topic.Partitions, now.Partitions)
		return operate.PostTopicSettings(ctx, &o.Client, c.Topic, now, &next)
	case "create-channel":
		return o.Client.Post(ctx, "/channel/create", q, nil, nil)
	case "set-channel":
		var now fold.ChannelSettings
		if err := o.Client.Get(ctx, "/channel/settings", q, &now); err != nil {
			return err
		}
		next := *c.channel.Settings
		next.Version = now.Version
		return o.Client.Post(ctx, "/channel/settings", q, &next, nil)
	case "delete-channel":
		return o.Client.Post(ctx, "/channel/delete", q, nil, nil)
	case "delete-topic":
		return o.Client.Post(ctx, "/topic/delete", q, nil, nil)
	}
	panic("BUG: the change " + c.Action)
}
