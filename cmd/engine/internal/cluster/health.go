package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node/health"
)

// minAsk is how long a command with --wait waits at least for an answer, also if --wait is shorter.
const minAsk = 2 * time.Second

// asking asks once for a command with --wait: a node that hangs does not hold it up beyond the deadline, or minAsk.
func asking(ctx context.Context, deadline time.Time, ask func(context.Context) error) error {
	if least := time.Now().Add(minAsk); deadline.Before(least) {
		deadline = least
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return ask(ctx)
}

// healthPoll is the interval at which health --wait asks the node.
const healthPoll = 200 * time.Millisecond

func HealthCommand() *cobra.Command {
	o := new(operator)
	return o.Anywhere(o.healthCommand())
}

func (o *operator) healthCommand() *cobra.Command {
	var wait time.Duration
	cmd := o.Action("health", "Say whether the node and its cluster are healthy", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			if wait < 0 {
				return cli.Fail(cli.ExitUsage, errors.New("--wait cannot be negative"))
			}
			v, err := o.awaitHealth(ctx, wait)
			if err != nil {
				return err
			}
			err = o.Print(v, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, v.Health)
				return err
			})
			if err != nil || v.Healthy {
				return err
			}
			return cli.Fail(cli.ExitUnhealthy, nil)
		})
	cmd.Long = "Say in one sentence whether the node and, if it is part of one, its cluster are healthy, and why not.\n" +
		"The node answers from what it knows itself: it waits for no other node. The exit code is 0 if all is\n" +
		"well, and 10 if something is wrong or the node does not answer. It works with a single node, too."
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait up to this long until all is well; 0 means ask once")
	return cmd
}

// awaitHealth asks the node for its verdict until it is healthy, wait has passed or ctx ends, and returns the last
// verdict. A node that does not answer is unhealthy.
func (o *operator) awaitHealth(ctx context.Context, wait time.Duration) (*health.Verdict, error) {
	var last *health.Verdict
	for deadline := time.Now().Add(wait); ; {
		v, err := o.oneHealth(ctx, wait, deadline)
		if err != nil && last != nil && ctx.Err() != nil {
			return last, nil
		}
		if err != nil || v.Healthy || !time.Now().Before(deadline) {
			return v, err // a wrong address or token does not become right
		}
		select {
		case <-time.After(min(healthPoll, time.Until(deadline))):
		case <-ctx.Done():
			return v, nil
		}
		last = v
	}
}

// oneHealth asks once.
func (o *operator) oneHealth(
	ctx context.Context, wait time.Duration, deadline time.Time,
) (v *health.Verdict, err error) {
	if wait == 0 {
		return o.Client.Health(ctx)
	}
	err = asking(ctx, deadline, func(ctx context.Context) error {
		v, err = o.Client.Health(ctx)
		return err
	})
	return v, err
}
