// Command engine, which is installed as penstock, runs a Penstock node, shows and changes nodes and clusters, imports
// the data of an nsqd, and measures a running node.
//
// Exit codes: 0 success; 1 an error that none of the others covers; 2 a wrong flag, variable, file or argument; 3 the
// data directory cannot be used; 4 an address cannot be listened on; 5 the commit log of a single node lacks messages
// that were answered OK; 10 the node or the cluster is unhealthy; 11 the
// result is partial, because a node did not answer. fsck, segdump and clogdump end with 1 if something is damaged, and
// with 2 if they could not look.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/offline"
	"penstock/internal/clip"
)

// Exit codes. They are documented in docs/reference/commands.md and may not change their meaning.
const (
	exitOther   = 1
	exitUsage   = 2
	exitData    = 3
	exitAddress = 4
	exitForgot  = 5
	exitMemory  = 6

	exitUnhealthy = 10
	exitPartial   = 11
)

// exitError is an error with the exit code that it gives the process. If err is nil, the command has already printed
// what is wrong.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

func main() {
	os.Exit(run(commandLine(os.Args), os.Stdout, os.Stderr))
}

// packageNames matches the package prefixes of our errors. They help programs that embed the engine; on a command line
// the sentence alone is enough.
var packageNames = regexp.MustCompile(
	`(^|: )(?:(?:aio|aside|backup|batch|client|clog|cluster|engine|etcd|kv|meta|migrate|netproto|nsq|` +
		`peer|replicate|segment|wire): )+`)

// run executes one command line and returns the exit code. Every error is one line on stderr.
func run(args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultCompletionCmd(args...)
	needCommand(root)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	err = explain(cmd, err)
	if text := strings.Join(strings.Fields(err.Error()), " "); text != "" {
		fmt.Fprintf(stderr, "penstock: %s\n", clip.Plain(packageNames.ReplaceAllString(text, "$1")))
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	if _, is := errors.AsType[*fs.PathError](err); is {
		return exitOther // the output could not be written
	}
	return exitUsage // cobra's own errors: unknown commands, flags and arguments
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "penstock",
		Short:         "A durable message engine that speaks the NSQ protocol",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetVersionTemplate("penstock {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	helpInGroups(root)
	root.AddCommand(inGroup(commandsRun, serveCommand(), nsqdCommand(), devClusterCommand())...)
	root.AddCommand(inGroup(commandsDaily, pubCommand(), readCommand(), subCommand(), topCommand(), topicCommand(),
		channelCommand(), producerCommand(), traceCommand(),
		anywhere((*operator).statusCommand), anywhere((*operator).healthCommand),
		anywhere((*operator).auditCommand), anywhere((*operator).reloadCommand),
		clusterCommand(), definitionsCommand(), backupCommand(), restoreCommand(),
		asideCommand())...)
	root.AddCommand(inGroup(commandsOther, acceptLossCommand(), benchCommand(), configCommand(), debugCommand(),
		migrateCommand(), rebuildCommand(), upgradeCommand(), versionCommand())...)
	root.AddCommand(inGroup(commandsOther, offline.Commands(func(code int, err error) error {
		return &exitError{code, err}
	})...)...)
	needCommand(root)
	sayArguments(root)
	return root
}

// sayArguments makes every command print its usage line when it gets too few or too many arguments.
func sayArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &exitError{exitUsage, fmt.Errorf("%w: %s", err, cmd.UseLine())}
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
		return &exitError{exitUsage, fmt.Errorf("unknown flag --%s%s; see %s --help",
			name, orNearest(name, "--", known), cmd.CommandPath())}
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		err = fmt.Errorf("--%s: %w", wrong.GetFlag().Name, wrongValue(wrong))
	}
	return &exitError{exitUsage, err}
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
