package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/values"
	"penstock/internal/cluster/admin"
)

// completionTimeout bounds the wait for a node while somebody types: a shell that hangs is worse than no proposal.
const completionTimeout = time.Second

// kind is what an argument or a flag names.
type kind int

const (
	aTopic   kind = iota
	aChannel      // of the topic in the first argument
	aNode
	nothing // that a node could know
)

// kinds are the words of a command's usage line that stand for names.
var kinds = map[string]kind{"TOPIC": aTopic, "CHANNEL": aChannel, "NODE": aNode}

// kindsOf returns what the arguments of a command name, from its usage line: "move TOPIC PARTITION --from NODE" takes a
// topic and something else.
func kindsOf(use string) (out []kind) {
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		k, known := kinds[strings.Trim(word, "[].")]
		if !known {
			k = nothing
		}
		out = append(out, k)
	}
	return out
}

// Completes makes the shell propose names for the arguments of cmd by asking the node. It proposes nothing if the node
// cannot be asked.
func (o *Operator) Completes(cmd *cobra.Command) {
	of := kindsOf(cmd.Use)
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(of) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return o.propose(of[len(args)], args, begun)
	}
}

// CompletesNodes makes the shell propose names of nodes for flags of cmd.
func (o *Operator) CompletesNodes(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		Must(cmd.RegisterFlagCompletionFunc(f, func(_ *cobra.Command, args []string, begun string) (
			[]string, cobra.ShellCompDirective,
		) {
			return o.propose(aNode, args, begun)
		}))
	}
}

// propose returns the names that begin with begun.
func (o *Operator) propose(k kind, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	var out []string
	for _, name := range o.names(ctx, k, args) {
		if strings.HasPrefix(name, begun) {
			out = append(out, name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// names returns all names of a kind, or none if the node does not say them.
func (o *Operator) names(ctx context.Context, k kind, args []string) (out []string) {
	switch k {
	case aTopic:
		all, _, err := o.TopicsNow(ctx)
		if err != nil {
			return nil
		}
		for i := range all {
			out = append(out, all[i].Name)
		}
	case aChannel:
		all, _, err := o.TopicsNow(ctx, args[0])
		if err != nil {
			return nil
		}
		for _, c := range ChannelsOf(all) {
			out = append(out, c.Name)
		}
	case aNode:
		var st admin.Status
		if o.Client.Get(ctx, "/cluster/status", nil, &st) != nil {
			return nil
		}
		for i := range st.Nodes {
			out = append(out, st.Nodes[i].Name)
		}
	}
	return out
}

// CompletesChoices makes the shell propose the values of those flags that have a fixed set of them.
func CompletesChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		v := f.Value
		if said, ok := v.(*values.Flag); ok {
			v = said.Value
		}
		if v, ok := v.(values.ChoiceValue); ok {
			Must(cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(v.Of, cobra.ShellCompDirectiveNoFileComp)))
		}
	})
}
