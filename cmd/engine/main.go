// Command engine, which is installed as penstock, runs a Penstock node, shows and changes nodes and clusters, imports
// the data of an nsqd, and measures a running node.
//
// Exit codes: 0 success; 1 an error that none of the others covers; 2 a wrong flag, variable, file or argument; 3 the
// data directory cannot be used; 4 an address cannot be listened on; 5 the commit log of a single node lacks messages
// that were answered OK; 6 the process may use too little memory; 10 the node or the cluster is unhealthy; 11 the
// result is partial, because a node did not answer. fsck, segdump and clogdump end with 1 if something is damaged, and
// with 2 if they could not look.
//
// Each group of commands is a package below internal, which lists its commands in its comment. TestGroups checks what
// they import of each other:
//
//	serve, devcluster            run nodes                             cli, client, settings, values
//	operate, cluster             show and change what runs             cli, client, settings, values
//	definitions                  topics and channels as a document     cli, client, operate, values
//	traffic                      send and take messages                cli, client, values
//	data                         backups, repairs, imports             cli, client, settings, traffic, values
//	offline                      check and show files of stopped nodes
//	settings                     what can be set of a node             cli, client, values
//	cli                          what the commands share               client, values
//	client                       the HTTP client of a node
//	values                       notations of sizes, times, choices
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/cluster"
	"penstock/cmd/engine/internal/data"
	"penstock/cmd/engine/internal/definitions"
	"penstock/cmd/engine/internal/devcluster"
	"penstock/cmd/engine/internal/offline"
	"penstock/cmd/engine/internal/operate"
	"penstock/cmd/engine/internal/serve"
	"penstock/cmd/engine/internal/settings"
	"penstock/cmd/engine/internal/traffic"
)

func main() {
	os.Exit(run(serve.CommandLine(os.Args), os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(rootCommand(), args, stdout, stderr)
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
	root.AddCommand(cli.InGroup(cli.CommandsRun,
		serve.Command(version), serve.NSQDCommand(version), devcluster.Command())...)
	root.AddCommand(cli.InGroup(cli.CommandsDaily,
		traffic.PubCommand(), traffic.ReadCommand(), traffic.SubCommand(),
		operate.TopCommand(), operate.TopicCommand(), operate.ChannelCommand(), operate.ProducerCommand(),
		operate.TraceCommand(), cluster.StatusCommand(), cluster.HealthCommand(), operate.AuditCommand(),
		operate.ReloadCommand(), operate.TokenCommand(), operate.OpenCommand(), cluster.Command(), definitions.Command(),
		data.BackupCommand(version), data.RestoreCommand(), data.AsideCommand())...)
	root.AddCommand(cli.InGroup(cli.CommandsOther,
		data.AcceptLossCommand(), traffic.BenchCommand(), settings.Command(), operate.DebugCommand(version),
		data.MigrateCommand(), data.RebuildCommand(), data.UpgradeCommand(), versionCommand())...)
	root.AddCommand(cli.InGroup(cli.CommandsOther, offline.Commands(cli.Fail)...)...)
	cli.Prepare(root)
	return root
}
