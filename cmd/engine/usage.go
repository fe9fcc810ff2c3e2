package main

import (
	"fmt"
	"regexp"

	"github.com/spf13/cobra"
)

// needCommand makes cmd, if it only has other commands below it, refuse what is none of them. Cobra alone prints the
// help and exits with 0, so that a script goes on as if its command had been carried out.
func needCommand(cmd *cobra.Command) {
	if cmd.HasSubCommands() && cmd.HasParent() && !cmd.Runnable() {
		cmd.Args = cobra.NoArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		needCommand(sub)
	}
}

// Cobra's texts about a command line; it has no error values for them.
var (
	unknownCommand = regexp.MustCompile(`^unknown command "(.*?)" for `)
	missingFlags   = regexp.MustCompile(`^required flag\(s\) .* not set$`)
)

// explain turns cobra's errors about the command line of cmd into sentences that say how to go on.
func explain(cmd *cobra.Command, err error) error {
	said := unknownCommand.FindStringSubmatch(err.Error())
	switch {
	case said != nil && cmd.HasAvailableSubCommands():
		var known []string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				known = append(known, sub.Name())
			}
		}
		return fail(exitUsage, fmt.Errorf("unknown command %q%s; see %s --help", said[1],
			orNearest(said[1], cmd.CommandPath()+" ", known), cmd.CommandPath()))
	case missingFlags.MatchString(err.Error()):
		return fail(exitUsage, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	}
	return err
}
