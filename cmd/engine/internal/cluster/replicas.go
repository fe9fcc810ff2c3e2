package cluster

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
)

func (o *operator) setReplicasCommand() *cobra.Command {
	cmd := o.Action("set-replicas TOPIC N", "Change how many nodes store each partition of a topic", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			replicas, err := strconv.Atoi(args[1])
			if err != nil || replicas < 1 {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("%q is no number of replicas: it must be 1 or more", args[1]))
			}
			return o.change(ctx, "/cluster/set-replicas", &admin.SetReplicas{Topic: args[0], Replicas: replicas})
		})
	cmd.Long = "Change how many nodes store each partition of a topic. Additional replicas are copied from the leader\n" +
		"and count when they have everything. Superfluous replicas are removed when all others are in sync, and the\n" +
		"leader always stays. min_isr becomes the majority of the replicas, unless the topic's settings name another\n" +
		"one."
	return cmd
}
