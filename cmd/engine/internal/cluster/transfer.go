package cluster

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/cluster/admin"
)

// transferPoll is the interval at which transfer-leader --wait asks who leads.
const transferPoll = 100 * time.Millisecond

func (o *operator) transferLeaderCommand() *cobra.Command {
	var to string
	var wait time.Duration
	cmd := o.Action("transfer-leader TOPIC PARTITION", "Give the leadership of a partition to another in-sync replica",
		cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
			p, err := partitionArg(args[1])
			if err != nil {
				return err
			}
			order := &admin.TransferLeader{Topic: args[0], Partition: &p, To: admin.NodeRef(to)}
			if wait == 0 {
				return o.change(ctx, "/cluster/transfer-leader", order)
			}
			done := new(admin.Done)
			if err := o.Client.Post(ctx, "/cluster/transfer-leader", nil, order, done); err != nil {
				return err
			}
			o.progress("%s", done.Message)
			if err := o.waitForLeader(ctx, args[0], p, done.Leader, wait); err != nil {
				return err
			}
			done.Message = fmt.Sprintf("node %s leads partition %d of topic %s", done.Leader, p, args[0])
			return o.printDone(done)
		})
	cmd.Long = "Give the leadership of a partition to another in-sync replica, which remains the preferred leader\n" +
		"until a rebalance or another transfer changes that. The present leader hands over as soon as everything is\n" +
		"committed: publishers wait for a moment, and nothing fails. Without --to, the other replica that leads the\n" +
		"fewest partitions is chosen. To move all leaderships away from a node, drain it."
	cmd.Flags().StringVar(&to, "to", "", "node that is to lead")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait up to this long until the node leads; 0 means do not wait")
	o.CompletesNodes(cmd, "to")
	return cmd
}

// waitForLeader waits until a node leads a partition, or is no longer to lead it.
func (o *operator) waitForLeader(
	ctx context.Context, topic string, partition uint32, node string, limit time.Duration,
) error {
	leader := ""
	for deadline := time.Now().Add(limit); ; {
		var all *admin.Topics
		err := asking(ctx, deadline, func(ctx context.Context) (err error) {
			all, err = o.placement(ctx, topic)
			return err
		})
		late := !time.Now().Before(deadline)
		switch {
		case err != nil && !late:
			return err
		case err != nil: // it keeps what the last answer said
		case len(all.Topics) != 1 || int(partition) >= len(all.Topics[0].Partitions):
			return fmt.Errorf("topic %s has been deleted: nobody leads it", topic)
		default:
			p := &all.Topics[0].Partitions[partition]
			if leader = p.Leader; leader == node && p.State != admin.StateLeaderless {
				return nil
			}
			if len(p.Replicas) > 0 && p.Replicas[0] != node {
				return fmt.Errorf("node %s is not to lead partition %d of topic %s any more: another order or a rebalance prefers "+
					"node %s", node, partition, topic, p.Replicas[0])
			}
		}
		if late {
			return fmt.Errorf("partition %d of topic %s is led by node %s after %v, not by node %s: the order stays in force; "+
				"see penstock cluster topics %[2]s", partition, topic, cmp.Or(leader, "(nobody)"), limit, node)
		}
		select {
		case <-time.After(min(transferPoll, time.Until(deadline))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
