package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
)

// allCommands returns a command and all commands below it.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		out = append(out, allCommands(sub)...)
	}
	return out
}

// O16: no line of any help is longer than the terminal is wide, except by a word that does not fit on a line.
func TestHelpFitsTheTerminal(t *testing.T) {
	for _, width := range []int{40, 60, 80, 133} {
		for _, cmd := range allCommands(rootCommand()) {
			for line := range strings.SplitSeq(cli.HelpText(cmd, width), "\n") {
				if utf8.RuneCountInString(line) > width && strings.Contains(strings.TrimLeft(line, " "), " ") {
					t.Errorf("%s at width %d: %q", cmd.CommandPath(), width, line)
				}
			}
		}
	}
	o := execute(t, "serve", "--help") // not to a terminal
	for line := range strings.SplitSeq(o.stdout, "\n") {
		if len(line) > cli.PlainWidth && strings.Contains(strings.TrimLeft(line, " "), " ") {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
}

// What the help calls the value of a flag is one word: a command in backquotes in its description would become that.
func TestFlagValuesAreWords(t *testing.T) {
	for _, cmd := range allCommands(rootCommand()) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if value, _ := pflag.UnquoteUsage(f); strings.Contains(value, " ") || strings.HasPrefix(value, "|") {
				t.Errorf("%s --%s %s", cmd.CommandPath(), f.Name, value)
			}
		})
	}
}

// O16: the flags of serve are listed in the groups of the settings, the most important first, and none is missing.
func TestHelpGroups(t *testing.T) {
	text := cli.HelpText(rootCommand().Commands()[slices.IndexFunc(rootCommand().Commands(), func(c *cobra.Command) bool {
		return c.Name() == "serve"
	})], 80)
	at := 0
	for _, want := range append([]string{"Usage:", "Flags:"}, cli.GroupOrder...) {
		i := strings.Index(text[at:], "\n"+strings.TrimSuffix(want, ":")+":\n")
		if i < 0 {
			t.Fatalf("%s is missing, or comes before others:\n%s", want, text)
		}
		at += i + 1
	}
	for _, s := range settings.Table(new(settings.Options)) {
		if !strings.Contains(text, "  --"+s.Name+" ") && !strings.Contains(text, "  --"+s.Name+"\n") {
			t.Errorf("--%s is missing", s.Name)
		}
	}
	if i, j := strings.Index(text, "--data-path"), strings.Index(text, "--broadcast-address"); i > j {
		t.Error("within a group the order is not that of the settings")
	}
}

// O17: --version, and completion in the help of the program.
func TestVersionFlag(t *testing.T) {
	if o := execute(t, "--version"); o.code != 0 || o.stdout != "penstock "+version+"\n" {
		t.Errorf("%+v", o)
	}
	if o := execute(t, "--help"); o.code != 0 || !strings.Contains(o.stdout, "\n  completion ") {
		t.Errorf("%+v", o)
	}
}

// O17: the shell proposes names that the node knows, and nothing, at once and without a word, if there is no node.
func TestCompletion(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	for _, topic := range []string{"orders", "orders.dead", "bills"} {
		steer(t, "topic", "create", topic)
	}
	steer(t, "channel", "create", "orders", "billing")
	for _, tc := range []struct{ args, want string }{
		{"topic pause |", "bills orders orders.dead :4"},
		{"topic pause ord|", "orders orders.dead :4"},
		{"topic pause orders |", ":4"},
		{"channel pause orders |", "billing :4"},
		{"channel pause none |", ":4"},
		{"channel seek orders billing --to |", "beginning end id time count :4"},
		{"cluster topics b|", "bills :4"},
		{"cluster drain |", ":4"}, // the node is in no cluster
		{"serve --io |", "auto uring pwrite :4"},
		{"pub ord|", "orders orders.dead :4"},
		{"pub orders |", ":4"},
		{"read b|", "bills :4"},
		{"sub ord|", "orders orders.dead :4"},
		{"sub orders |", "billing :4"},
		{"sub orders billing --format |", "body json hex :4"},
		{"topic set orders --quota-mode |", "reject drop-oldest :4"},
		{"topic pause --http-address 127.0.0.1:1 |", ":4"},
		{"topic pause --token-file |", ":0"}, // files
	} {
		args := strings.Split(strings.TrimSuffix(tc.args, "|"), " ")
		began := time.Now()
		o := execute(t, append([]string{"__complete"}, args...)...)
		got := strings.Join(strings.Fields(o.stdout), " ")
		if o.code != 0 || got != tc.want {
			t.Errorf("%s: %q, want %q; %s", tc.args, got, tc.want, o.stderr)
		}
		if strings.Contains(o.stderr, "penstock:") || time.Since(began) > 10*time.Second {
			t.Errorf("%s: after %v: %s", tc.args, time.Since(began), o.stderr)
		}
	}
}

// version --json has the fields of build and no others.
func TestVersionJSON(t *testing.T) {
	o := execute(t, "version", "--json")
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	var b build
	if err := d.Decode(&b); err != nil || o.code != 0 || b.Version != version || b.Commit == "" || b.Formats.Batch == 0 {
		t.Errorf("%+v: %v", o, err)
	}
}
