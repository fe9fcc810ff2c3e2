package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
	"penstock/internal/node"
)

// verifiedPartition is the result of verifying one partition.
type verifiedPartition struct {
	Topic     string            `json:"topic"`
	Partition uint32            `json:"partition"`
	Bytes     int64             `json:"bytes"`
	Nodes     []string          `json:"nodes"`
	Found     []node.Difference `json:"found"`
}

// verification is what the command prints as JSON when it ends. After an error it has the partitions that were compared
// before.
type verification struct {
	Partitions []*verifiedPartition `json:"partitions"`
}

func (o *operator) verifyCommand() *cobra.Command {
	cmd := o.Action("verify [TOPIC]", "Compare the in-sync replicas while the cluster runs", cobra.MaximumNArgs(1),
		func(ctx context.Context, args []string) error {
			all, err := o.placement(ctx, args...)
			if err != nil {
				return err
			}
			done := verification{Partitions: []*verifiedPartition{}}
			err = o.verifyAll(ctx, all, &done)
			if o.AsJSON {
				err = cmp.Or(err, cli.PrintJSON(o.Out, &done))
			}
			if err != nil {
				return err
			}
			found := 0
			for _, v := range done.Partitions {
				found += len(v.Found)
			}
			if found > 0 {
				return fmt.Errorf("the replicas differ in %s", cli.Counted(found, "place"))
			}
			return nil
		})
	cmd.Long = "Compare the in-sync replicas of each partition while the cluster runs. Each node reads its own copy\n" +
		"from its disk, at 16 MiB/s at most, and verifies it. Damaged data is repaired from a replica whose data\n" +
		"verifies. If copies verify and still differ, the first difference is shown and nothing is changed. The exit\n" +
		"code is 1 if damage or a difference was found. Messages that are not committed yet are not compared. With\n" +
		"--json one document is printed at the end."
	return cmd
}

// verifyAll verifies one partition after the other, and says so as it goes on.
func (o *operator) verifyAll(ctx context.Context, all *admin.Topics, done *verification) error {
	for _, t := range all.Topics {
		for _, p := range t.Partitions {
			v, err := o.verifyPartition(ctx, t.Name, p.Partition)
			if err != nil {
				return fmt.Errorf("partition %d of topic %s: %w", p.Partition, t.Name, err)
			}
			done.Partitions = append(done.Partitions, v)
			if o.AsJSON {
				continue
			}
			if err := o.printVerified(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *operator) verifyPartition(ctx context.Context, topic string, partition uint32) (*verifiedPartition, error) {
	v := &verifiedPartition{Topic: topic, Partition: partition, Found: []node.Difference{}}
	for at := int64(0); ; {
		step := new(node.Verified)
		if err := o.Client.Post(ctx, "/cluster/verify", nil, &admin.Verify{
			Topic: topic, Partition: &partition, At: at,
		}, step); err != nil {
			return nil, err
		}
		v.Bytes += step.Bytes
		v.Nodes, v.Found = step.Nodes, append(v.Found, step.Found...)
		switch next := int64(step.Next); {
		case step.Done:
			return v, nil
		case next <= at:
			return nil, errors.New("the comparison does not get on: a replica does not answer; try again")
		default:
			at = next
		}
	}
}

func (o *operator) printVerified(v *verifiedPartition) error {
	what := "are the same"
	if len(v.Found) > 0 {
		what = "were compared"
	}
	_, err := fmt.Fprintf(o.Out, "%s/%d: %d bytes %s on %s\n",
		v.Topic, v.Partition, v.Bytes, what, strings.Join(v.Nodes, ", "))
	for _, d := range v.Found {
		if len(d.Damaged) > 0 {
			_, err = fmt.Fprintf(o.Out, "  from message %s on, bytes %d to %d: damaged on %s; it is repaired from a replica "+
				"whose data verifies\n", d.First, d.From, d.To, strings.Join(d.Damaged, ", "))
		}
		if len(d.Differing) > 0 {
			_, err = fmt.Fprintf(o.Out, "  from message %s on, bytes %d to %d: the data on %s verifies but differs; nothing "+
				"was changed\n", d.First, d.From, d.To, strings.Join(d.Differing, ", "))
		}
	}
	return err
}
