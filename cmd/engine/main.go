// Command engine runs a Penstock node, shows and changes nodes and clusters, imports the data of an nsqd, and measures
// a running node.
//
// Exit codes: 0 success; 1 an error that none of the others covers; 2 a wrong flag, variable, file or argument; 3 the
// data directory cannot be used; 4 an address cannot be listened on; 5 the commit log of a single node lacks messages
// that were answered OK; 10 the node or the cluster is unhealthy; 11 the
// result is partial, because a node did not answer.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"penstock/internal/clip"
)

func main() {
	os.Exit(run(commandLine(os.Args), os.Stdout, os.Stderr))
}

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
		fmt.Fprintf(stderr, "engine: %s\n", clip.Plain(packageNames.ReplaceAllString(text, "$1")))
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	if _, is := errors.AsType[*fs.PathError](err); is {
		return exitOther // the output could not be written
	}
	return exitUsage // cobra's own errors: unknown commands, flags and arguments
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "engine",
		Short:         "A durable message engine that speaks the NSQ protocol",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetVersionTemplate("penstock {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	helpInGroups(root)
	root.AddCommand(inGroup(commandsRun, serveCommand(version), nsqdCommand(version), devClusterCommand())...)
	root.AddCommand(inGroup(commandsDaily, pubCommand(), readCommand(), subCommand(), topCommand(), topicCommand(),
		channelCommand(), producerCommand(), traceCommand(),
		statusCommand(), healthCommand(), auditCommand(), reloadCommand(),
		clusterCommand(), definitionsCommand(), backupCommand(version), restoreCommand(),
		asideCommand())...)
	root.AddCommand(inGroup(commandsOther, acceptLossCommand(), benchCommand(), configCommand(), debugCommand(version),
		migrateCommand(), rebuildCommand(), upgradeCommand(), versionCommand())...)
	needCommand(root)
	sayArguments(root)
	return root
}
