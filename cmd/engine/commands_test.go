package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/client"
)

// local are the commands that talk to no running node; completion makes more.
var local = []string{
	"penstock serve", "penstock nsqd", "penstock dev-cluster", "penstock config", "penstock restore", "penstock upgrade",
	"penstock version", "penstock accept-loss", "penstock rebuild-cluster",
	"penstock cluster init-tls", "penstock aside list", "penstock aside show", "penstock aside remove",
	"penstock fsck", "penstock segdump", "penstock clogdump",
}

// native are the commands that speak the native protocol. They name nodes by --nodes; read prints JSON with --format.
var native = []string{"penstock pub", "penstock read", "penstock sub", "penstock aside publish"}

// leaves returns the commands that do something, except help and completion.
func leaves(root *cobra.Command) (out []*cobra.Command) {
	for _, cmd := range allCommands(root) {
		if len(cmd.Commands()) == 0 && cmd.Runnable() && cmd.Name() != "help" {
			out = append(out, cmd)
		}
	}
	return out
}

// O4, O12: every command that talks to a node does so with the same flags, and prints JSON.
func TestCommandsHaveTheSameFlags(t *testing.T) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(client.Flags).Add(all)
	var names []string
	all.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if names = append(names, "json"); len(names) < 9 {
		t.Fatalf("%q", names)
	}
	var asked []string
	for _, cmd := range leaves(rootCommand()) {
		path := cmd.CommandPath()
		if slices.Contains(local, path) {
			continue
		}
		asked = append(asked, strings.TrimPrefix(path, "penstock "))
		for _, name := range names {
			if name == "json" && path == "penstock migrate nsqd" {
				continue // it prints its progress
			}
			if slices.Contains(native, path) && (name == "http-address" || name == "json" && cmd.Flag("format") != nil) {
				continue
			}
			f := cmd.Flag(name)
			if f == nil {
				t.Errorf("%s lacks --%s", path, name)
				continue
			}
			if want := all.Lookup(name); want != nil && (f.Usage != want.Usage || f.DefValue != want.DefValue || f.Hidden) {
				t.Errorf("%s: --%s is another flag: %s", path, name, f.Usage)
			}
		}
	}
	if len(asked) < 40 {
		t.Errorf("only these commands talk to a node: %q", asked)
	}
	status, _, err := rootCommand().Find([]string{"cluster", "status"})
	must(t, err)
	if f := status.Flag("http"); f == nil || !f.Hidden {
		t.Error("the old name --http does not work any more")
	}
}
