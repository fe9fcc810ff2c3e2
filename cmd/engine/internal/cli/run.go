package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"penstock/internal/clip"
)

// Prepare gives the program's command, which has all others below it, help in groups and errors that say how to go on.
func Prepare(root *cobra.Command) {
	helpInGroups(root)
	root.SetFlagErrorFunc(flagError)
	needCommand(root)
	sayArguments(root)
}

// Run executes one command line and returns the exit code. Every error is one line on stderr.
func Run(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
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
	if text := Sentence(err); text != "" {
		fmt.Fprintf(stderr, "penstock: %s\n", clip.Plain(text))
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	if _, is := errors.AsType[*fs.PathError](err); is {
		return ExitOther // the output could not be written
	}
	return ExitUsage // cobra's own errors: unknown commands, flags and arguments
}
