// Command engine runs a Penstock node, prints its configuration and measures a running one.
//
// Exit codes: 0 the command did its work; 1 an error that none of the others names; 2 a wrong flag,
// variable, file or argument; 3 the data directory cannot be used; 4 an address cannot be listened on.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes. They are documented in README.md and may not change their meaning.
const (
	exitOther   = 1
	exitUsage   = 2
	exitData    = 3
	exitAddress = 4
)

// exitError is an error that knows the exit code of the process.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func main() {
	os.Exit(run(commandLine(os.Args), os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code. Every error is one line on stderr.
func run(args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err == nil {
		return 0
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintf(stderr, "engine: %s\n", strings.TrimPrefix(text, "engine: "))
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitUsage // what cobra itself refuses: unknown commands, flags and arguments
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "engine",
		Short:         "A durable message engine that speaks the NSQ protocol",
		SilenceUsage:  true,
		SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{
			HiddenDefaultCmd: true,
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(serveCommand(), devClusterCommand(), clusterCommand(), configCommand(), versionCommand(), benchCommand(), migrateCommand(), nsqdCommand(), channelCommand(), topicCommand())
	return root
}

// flagError names the nearest flag when one is unknown.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		return &exitError{exitUsage, fmt.Errorf("unknown flag --%s; the nearest one is --%s (see engine %s --help)",
			unknown.GetSpecifiedName(), nearest(unknown.GetSpecifiedName(), known), cmd.Name())}
	}
	return &exitError{exitUsage, err}
}
