package operate

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node/fold"
)

func (o *operator) channelSetCommand() *cobra.Command {
	f := &settingFlags[fold.ChannelSettings]{rows: fold.ChannelRows}
	noFilter := false
	var cmd *cobra.Command
	cmd = o.Action("set TOPIC CHANNEL", "Change a channel's settings", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			if !cli.AnyOwn(cmd) {
				return cli.Fail(cli.ExitUsage, errors.New("say what to set; see penstock channel set --help"))
			}
			var s fold.ChannelSettings
			q := cli.QueryOf(args[0], args[1])
			if err := o.Client.Get(ctx, "/channel/settings", q, &s); err != nil {
				return err
			}
			if noFilter {
				s.Filter = fold.Filter{}
			}
			if err := f.apply(o.In, &s, &s.Version); err != nil {
				return cli.Fail(cli.ExitUsage, err)
			}
			if err := o.Client.Post(ctx, "/channel/settings", q, &s, &s); err != nil {
				return err
			}
			return o.Print(&s, func(w io.Writer) error { return printChannelSettings(w, &s) })
		})
	cmd.Long = "Change a channel's settings. Only settings whose flags are given change. --file replaces all settings:\n" +
		"those that the file does not contain get their defaults. The command fails if somebody else changes the settings\n" +
		"at the same time.\n\n" +
		"A filter consists of rules. A RULE is HEADER=VALUE, HEADER^=PREFIX, HEADER*=GLOB, HEADER~=REGEXP, or HEADER for\n" +
		"messages that have this header. A message matches if one rule matches, with --filter-all if all rules match. The\n" +
		"channel delivers the messages that match, with --filter-invert those that do not. All others count as confirmed."
	f.add(cmd, "penstock channel settings --json")
	cmd.Flags().BoolVar(&noFilter, "no-filter", false, "remove the filter and deliver every message")
	for _, name := range []string{"filter", "filter-all", "filter-invert"} {
		cmd.MarkFlagsMutuallyExclusive(name, "no-filter")
	}
	return cmd
}

func printChannelSettings(w io.Writer, s *fold.ChannelSettings) error {
	return printSettings(w, s.Version, s, fold.ChannelRows)
}
