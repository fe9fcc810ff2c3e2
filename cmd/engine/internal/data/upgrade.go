package data

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node"
)

// UpgradeCommand raises the feature level of a single node's data directory. The node must not be running.
func UpgradeCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "upgrade --data-path DIR",
		Short: "Raise a single node's data directory to the newest feature level",
		Long: "Raise the data directory of a stopped single node to the newest feature level that this version knows.\n" +
			"Afterwards older versions refuse to use the directory. To upgrade a cluster, use penstock cluster upgrade.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return cli.Fail(cli.ExitUsage, errors.New("say the data directory with --data-path"))
			}
			from, to, err := node.Upgrade(dir)
			if err != nil {
				return cli.Fail(cli.ExitData, err)
			}
			if from == to {
				fmt.Fprintf(cmd.OutOrStdout(), "the data directory is already at the newest feature level, %d\n", to)
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the data directory was raised from feature level %d to %d: older versions "+
				"refuse to use it now\n", from, to)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "data-path", "", "data directory of the stopped node")
	return cmd
}
