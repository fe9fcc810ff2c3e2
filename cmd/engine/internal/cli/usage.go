package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// needCommand makes cmd, if it only has other commands below it, print its help, and refuse what is none of them. Cobra
// alone prints the help in both cases and exits with 0, so that a script goes on as if its command had been carried
// out.
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
		return Fail(ExitUsage, fmt.Errorf("unknown command %q%s; see %s --help", said[1],
			OrNearest(said[1], cmd.CommandPath()+" ", known), cmd.CommandPath()))
	case missingFlags.MatchString(err.Error()):
		return Fail(ExitUsage, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	}
	return err
}

// sayArguments makes every command print its usage line when it gets too few or too many arguments.
func sayArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return Fail(ExitUsage, fmt.Errorf("%w: %s", err, cmd.UseLine()))
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		sayArguments(sub)
	}
}

// flagError suggests the nearest flag when one is unknown, and says what a flag takes that has a wrong value.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				known = append(known, f.Name)
			}
		})
		name := unknown.GetSpecifiedName()
		return Fail(ExitUsage, fmt.Errorf("unknown flag --%s%s; see %s --help",
			name, OrNearest(name, "--", known), cmd.CommandPath()))
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		err = fmt.Errorf("--%s: %w", wrong.GetFlag().Name, wrongValue(wrong))
	}
	return Fail(ExitUsage, err)
}

// wrongValue says why a flag's value is wrong, in place of Go's parsers. Flags of our own types say it themselves.
func wrongValue(e *pflag.InvalidValueError) error {
	cause, kind := errors.Unwrap(e), e.GetFlag().Value.Type()
	var number *strconv.NumError
	takes := ""
	switch {
	case errors.Is(cause, strconv.ErrRange):
		return fmt.Errorf("%q is too large or too small", e.GetValue())
	case strings.HasPrefix(cause.Error(), "time: "):
		takes = "not a time such as 30s or 5m"
	case !errors.As(cause, &number):
		return cause
	case kind == "bool":
		takes = "neither true nor false"
	case strings.HasPrefix(kind, "uint"):
		takes = "not a whole number of 0 or more"
	case strings.HasPrefix(kind, "int"):
		takes = "not a whole number"
	default:
		takes = "not a number"
	}
	return fmt.Errorf("%q is %s", e.GetValue(), takes)
}
