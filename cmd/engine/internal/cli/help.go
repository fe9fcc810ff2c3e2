package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"penstock/internal/clip"
)

const (
	// PlainWidth is the width of help texts that do not go to a terminal, and leastWidth that of a very narrow one.
	PlainWidth = 80
	leastWidth = 40

	// GroupKey is the annotation of a flag that names the group under which help lists it.
	GroupKey = "group"
)

// The groups of serve's flags, as help and the table of settings name them.
const (
	GroupNode      = "Node"
	GroupCluster   = "Cluster"
	GroupStorage   = "Storage"
	GroupRetention = "Retention"
	GroupMemory    = "Memory and queues"
	GroupMessages  = "Messages and channels"
	GroupClients   = "NSQ clients"
	GroupSecurity  = "Security"
	GroupMetrics   = "Metrics"
)

// GroupOrder lists the groups of serve's flags, the most important first. Other groups follow in the order of the
// table.
var GroupOrder = []string{
	GroupNode, GroupSecurity, GroupCluster, GroupRetention, GroupMessages, GroupClients, GroupMemory, GroupStorage,
}

// The groups of commands in `penstock --help`.
const (
	CommandsRun   = "run"
	CommandsDaily = "daily"
	CommandsOther = "other"
)

// helpInGroups makes root and all commands below it print help that is wrapped to the width of the terminal, with flags
// and commands in groups.
func helpInGroups(root *cobra.Command) {
	root.AddGroup(&cobra.Group{ID: CommandsRun, Title: "Run nodes:"},
		&cobra.Group{ID: CommandsDaily, Title: "Show and change what runs:"},
		&cobra.Group{ID: CommandsOther, Title: "Other commands:"})
	root.SetCompletionCommandGroupID(CommandsOther)
	root.SetHelpCommandGroupID(CommandsOther)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_, _ = io.WriteString(cmd.OutOrStdout(), HelpText(cmd, WidthOf(cmd.OutOrStdout())))
	})
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := io.WriteString(cmd.ErrOrStderr(), usageText(cmd, WidthOf(cmd.ErrOrStderr())))
		return err
	})
}

// InGroup puts commands of root into a group of its help.
func InGroup(id string, cmds ...*cobra.Command) []*cobra.Command {
	for _, c := range cmds {
		c.GroupID = id
	}
	return cmds
}

// WidthOf returns the number of columns to which text for w is wrapped.
func WidthOf(w io.Writer) int {
	if IsTerminal(w) {
		if columns, _, err := term.GetSize(int(clip.Unwrap(w).(*os.File).Fd())); err == nil && columns > 0 {
			return max(columns, leastWidth)
		}
	}
	return PlainWidth
}

// HelpText returns what cmd prints with --help, wrapped to the width.
func HelpText(cmd *cobra.Command, width int) string {
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	return wrapText(text, width) + "\n" + usageText(cmd, width)
}

func usageText(cmd *cobra.Command, width int) string {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		b.WriteString(hanging("  ", cmd.UseLine(), 4, width))
	} else {
		b.WriteString(hanging("  ", cmd.CommandPath()+" COMMAND [flags]", 4, width))
	}
	writeCommands(&b, cmd, width)
	for _, g := range flagGroups(cmd.LocalFlags()) {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, flagUsages(g.flags, width))
	}
	if cmd.HasAvailableInheritedFlags() {
		fmt.Fprintf(&b, "\nFlags of all %s commands:\n%s", cmd.Parent().Name(), flagUsages(cmd.InheritedFlags(), width))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s", wrapText(cmd.CommandPath()+" COMMAND --help says more about a command.", width))
	}
	return b.String()
}

// writeCommands lists the commands below cmd, in their groups.
func writeCommands(b *strings.Builder, cmd *cobra.Command, width int) {
	name := 0
	for _, c := range cmd.Commands() {
		name = max(name, len(c.Name()))
	}
	list := func(title, group string) {
		for _, c := range cmd.Commands() {
			if c.GroupID != group || !c.IsAvailableCommand() && c.Name() != "help" {
				continue
			}
			if title != "" {
				fmt.Fprintf(b, "\n%s\n", title)
				title = ""
			}
			b.WriteString(hanging(fmt.Sprintf("  %-*s  ", name, c.Name()), c.Short, name+4, width))
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, g.ID)
	}
	list("Commands:", "")
}

// flagGroup is a part of a command's flags, under a title of its own.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// flagGroups splits flags by their annotation GroupKey. Flags without one come first.
func flagGroups(all *pflag.FlagSet) []flagGroup {
	order := append([]string{""}, GroupOrder...)
	sets := map[string]*pflag.FlagSet{}
	all.VisitAll(func(f *pflag.Flag) {
		group := ""
		if g := f.Annotations[GroupKey]; len(g) > 0 {
			group = g[0]
		}
		if !slices.Contains(order, group) {
			order = append(order, group)
		}
		if sets[group] == nil {
			sets[group] = pflag.NewFlagSet("", pflag.ContinueOnError)
			sets[group].SortFlags = group == ""
		}
		sets[group].AddFlag(f)
	})
	var out []flagGroup
	for _, group := range order {
		if set := sets[group]; set != nil && set.HasAvailableFlags() {
			title := "Flags"
			if group != "" {
				title = group
			}
			out = append(out, flagGroup{title, set})
		}
	}
	return out
}

// flagUsages lists flags, each with its help text below it: beside it there is not enough room for long names.
func flagUsages(flags *pflag.FlagSet, width int) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, help := pflag.UnquoteUsage(f)
		line := "--" + f.Name
		if f.Shorthand != "" {
			line = "-" + f.Shorthand + ", " + line
		}
		if kind != "" {
			line += " " + kind
		}
		switch f.DefValue {
		case "", "false", "0", "0s", "[]", "0b":
		default:
			help += " (default " + f.DefValue + ")"
		}
		b.WriteString(hanging("  ", line, 4, width))
		b.WriteString(hanging("        ", help, 8, width))
	})
	return b.String()
}

// indented matches the beginning of a line of a list: its indentation, and a term that two spaces separate from its
// explanation.
var indented = regexp.MustCompile(`^ +(\S+( \S+)*  +)?`)

// wrapText wraps paragraphs to a width. Lines that begin with a space stay lines of their own; if they are too long,
// they go on below their explanation. A line that begins with four spaces or more goes on with the line before.
func wrapText(text string, width int) string {
	var b strings.Builder
	item := ""
	flush := func() {
		lead := indented.FindString(item)
		b.WriteString(hanging(lead, strings.TrimPrefix(item, lead), len(lead), width))
		item = ""
	}
	for _, line := range strings.Split(strings.Trim(text, "\n"), "\n") {
		switch {
		case line == "":
			if item != "" {
				flush()
			}
			b.WriteByte('\n')
		case item == "":
			item = line
		case strings.HasPrefix(line, "    ") || line[0] != ' ' && item[0] != ' ':
			item += " " + strings.TrimSpace(line)
		default:
			flush()
			item = line
		}
	}
	if item != "" {
		flush()
	}
	return b.String()
}

// hanging wraps words to a width, behind lead, and indents all lines but the first. Only a word that is longer than the
// room for it makes a longer line.
func hanging(lead, text string, indent, width int) string {
	if indent > width/2 {
		indent = 4
	}
	var b strings.Builder
	b.WriteString(lead)
	column, first := len(lead), true
	for word := range strings.FieldsSeq(text) {
		size := len([]rune(word))
		switch {
		case !first && column+1+size > width, first && column+size > width && column > indent:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		case !first:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += size
		first = false
	}
	b.WriteByte('\n')
	return b.String()
}
