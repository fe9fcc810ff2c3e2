package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	nodesettings "penstock/cmd/engine/internal/settings"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/meta"
	"penstock/internal/node/fold"
	"penstock/internal/settings"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// generated compares a page of docs/reference with what the program says of itself, or writes it with -update. ' in
// text stands for the quotes of code.
func generated(t *testing.T, name, page string) {
	t.Helper()
	file := "../../docs/reference/" + name
	if *update {
		must(t, os.WriteFile(file, []byte(page), 0o644))
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != page {
		t.Errorf("%s differs from the program (%v): go test ./cmd/engine -run %s -update writes it", file, err, t.Name())
	}
}

// cell returns text for a column of a table: | would end it.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// quoted returns text as code for a column of a table; an empty text stays empty.
func quoted(s string) string {
	if s == "" {
		return ""
	}
	return "`" + cell(s) + "`"
}

// least returns the smallest value of a setting that has one above 0, in the notation of its flag.
func least(v values.Value) string {
	n, is := v.(values.NumberValue)
	switch {
	case !is || n.Least == 0:
		return ""
	case n.Kind == "bytes":
		return values.FormatBytes(n.Least)
	case n.Kind == "duration":
		return values.FormatDuration(time.Duration(n.Least))
	}
	return fmt.Sprint(n.Least)
}

const settingsIntro = `# Settings

Every setting of a node ('penstock serve'), of a topic and of a channel, written by 'go test ./cmd/engine -run
TestSettingsPage -update' from the tables that the program uses.

## Where the settings of a node come from

| place | form | example |
|---|---|---|
| a flag of 'penstock serve' | '--NAME' | '--http-address 10.0.0.5:4151' |
| the environment | 'PENSTOCK_', then the name in capitals, with '_' for '-' | 'PENSTOCK_HTTP_ADDRESS=10.0.0.5:4151' |
| a TOML file | the name with '_' for '-', without sections | 'http_address = "10.0.0.5:4151"' |

A flag wins over the environment, the environment over the file, and the file over the default. 'penstock config' prints
every setting with its value and the place it comes from, 'penstock config --defaults' a TOML file with all settings
commented out. An unknown name is an error. Variables that begin with 'ENGINE_', as before the first release, are still
read, with a warning. What Kubernetes sets for its services, such as 'PENSTOCK_PORT', is passed over.

A node reads its settings when it starts, and the file again at SIGHUP ('systemctl reload penstock') and by 'penstock
reload', which says what has changed and what needs a restart; 'penstock config running' shows both at any time. The
column "while running" says what becomes of a new value: it holds "at once"; it holds for "new connections", while those
that are open keep what they were told; or it "needs a restart". A lower limit takes nothing back: what is above it
stays, and what comes is refused. Settings that contradict each other are refused as a whole, and the node goes on. What
was changed by 'PUT /config' stays until the file says something else than before.

The files of certificates, keys, tokens, passwords and secrets that settings name ("the file's content") are read again
on these occasions, too, and within 5 s when one of them has changed. Until the files of a set can be used together,
what was read before holds on.

| other variable | what for |
|---|---|
| 'PENSTOCK_CONFIG' | the TOML file, as '--config' |
| '` + client.EnvAddress + `' | the node that commands such as 'penstock topic list' ask, as their '--http-address' |
| '` + client.EnvNodes + `' | the nodes that 'penstock pub', 'sub' and 'read' ask first, as their '--nodes' |
| '` + client.EnvToken + `' | the token with which commands log in at a node, as the content of their '--token-file' |

| type | what it takes |
|---|---|
| text | any text; what the description says |
| addresses, hosts, percentiles | a list: separated by commas, or the flag several times |
| bool | 'true' or 'false'; the flag alone means 'true' |
| count | a whole number |
| bytes | a whole number of bytes, or a number with a unit of 1024 ('KiB', 'MiB', 'GiB', 'TiB') or 1000 ('KB', 'MB') |
| duration | a number with a unit: 'ms', 's', 'm', 'h', or several of them ('1h30m') |
| 'a\|b' | one of these words |

In TOML, counts and booleans stand bare, sizes bare or in quotes, and everything else in quotes. Where no default is
given, it is the empty text. What is not 0 by default must be 1 or 1ms at least, unless its row says more, or what 0
means.
`

const topicIntro = `
## A topic

'penstock topic set TOPIC' changes these, 'penstock topic settings TOPIC' shows them. Over HTTP they are a JSON document
at '/topic/settings', with the names of the second column, or of the first with '_' for '-'; times are in milliseconds,
sizes in bytes, and 'none' is -1.
How they work together: [Settings of a topic](../channels.md#settings-of-a-topic).

| flag | JSON | type | default | what for |
|---|---|---|---|---|
`

const channelIntro = `
## A channel

'penstock channel set TOPIC CHANNEL' changes these, 'penstock channel settings TOPIC CHANNEL' shows them. Over HTTP they
are a JSON document at '/channel/settings'. How they work together:
[Settings of a channel](../channels.md#settings-of-a-channel).

| flag | JSON | type | default | what for |
|---|---|---|---|---|
`

func TestSettingsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(settingsIntro, "'", "`"))
	c := nodesettings.New(pflag.NewFlagSet("", pflag.ContinueOnError))
	group := ""
	for _, s := range c.Settings {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n## %s\n\n| setting | type | default | while running | what for |\n|---|---|---|---|---|\n", group)
		}
		help := s.Help
		if l := least(s.Value); l != "" && l != "1" && l != "1ms" {
			help += "; at least " + l
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s | %s |\n",
			s.Name, typeOf(s.Value.Type()), quoted(s.Preset), s.Running(), cell(help))
	}
	b.WriteString(strings.ReplaceAll(topicIntro, "'", "`"))
	ofTable(t, &b, meta.TopicRows)
	b.WriteString(strings.ReplaceAll(channelIntro, "'", "`"))
	ofTable(t, &b, fold.ChannelRows)
	generated(t, "settings.md", b.String())
}

// typeOf names the type of a flag as the page explains it.
func typeOf(pflagType string) string {
	switch pflagType {
	case "int", "int64", "uint32":
		return "count"
	case "string":
		return "text"
	case "stringArray":
		return "text, several times"
	}
	if strings.Contains(pflagType, "|") {
		return quoted(pflagType)
	}
	return pflagType
}

// ofTable writes a row for each setting of a topic or a channel. Each row sets the field whose name in JSON it has, and
// each field but the version has a row.
func ofTable[S any](t *testing.T, b *strings.Builder, rows settings.Table[S]) {
	t.Helper()
	var all S
	tags := map[int]bool{}
	for _, r := range rows {
		if tags[r.Tag] || r.Tag < 1 || r.Tag > settings.MaxTag {
			t.Errorf("%s has the tag %d, as another setting has", r.Name, r.Tag)
		}
		tags[r.Tag] = true
		var one S
		for _, s := range []*S{&all, &one} {
			f := r.Of(s)
			must(t, f.Set(f.Try(3)))
		}
		if was, is := jsonFieldsOf(t, *new(S)), jsonFieldsOf(t, one); is[r.Name] == was[r.Name] {
			t.Errorf("the row %s does not set the field of that name: %v", r.Name, is)
		}
		f := r.Of(new(S))
		name := r.Name
		if name == strings.ReplaceAll(r.Flag, "-", "_") {
			name = ""
		}
		fmt.Fprintf(b, "| `--%s` | %s | %s | %s | %s |\n",
			r.Flag, quoted(name), typeOf(f.Type()), quoted(cmp.Or(f.String(), r.Zero)), cell(r.Says))
	}
	for name := range jsonFieldsOf(t, all) {
		if name != "version" && !slices.ContainsFunc(rows, func(r settings.Row[S]) bool { return r.Name == name }) {
			t.Errorf("no row sets the field %s", name)
		}
	}
}

// jsonFieldsOf returns the values of settings by their names in JSON, those of objects in them as "filter.all".
func jsonFieldsOf(t *testing.T, settings any) map[string]string {
	t.Helper()
	text, err := json.Marshal(settings)
	must(t, err)
	var object map[string]any
	must(t, json.Unmarshal(text, &object))
	fields := map[string]string{}
	for name, v := range object {
		inner, ok := v.(map[string]any)
		if !ok {
			fields[name] = fmt.Sprint(v)
		}
		for below, v := range inner {
			fields[name+"."+below] = fmt.Sprint(v)
		}
	}
	return fields
}

const commandsIntro = `# Commands

All commands of 'penstock', each without that word; 'penstock COMMAND --help' describes its arguments and flags. Those
that talk to a node take '--http-address' (or the variable 'PENSTOCK_SERVER'), '--tls-ca', '--tls-cert', '--tls-key' and
'--token-file' (or 'PENSTOCK_TOKEN'), and print JSON with '--json'; 'pub', 'read' and 'sub' name nodes with '--nodes'
(or 'PENSTOCK_NODES'). 'penstock completion --help' says how a shell completes names.

The exit code is 0 if the command did what it says, and otherwise:

| code | meaning |
|---|---|
%s
'fsck', 'segdump' and 'clogdump' end with 1 if something is damaged, and with 2 if they could not look.

This page is written by 'go test ./cmd/engine -run TestCommandsPage -update'.
`

// exitMeanings are the exit codes with what they tell scripts.
var exitMeanings = []struct {
	code    int
	meaning string
}{
	{cli.ExitOther, "any other error"},
	{cli.ExitUsage, "a wrong flag, variable, configuration file or argument; nothing was touched"},
	{cli.ExitData, "the data directory cannot be used; nothing in it was changed"},
	{cli.ExitAddress, "the node cannot listen on an address; no data directory was made"},
	{cli.ExitForgot, "the commit log of a single node lacks messages that were answered OK; nothing was changed: see " +
		"'penstock accept-loss'"},
	{cli.ExitMemory, "the node needs more memory than the process may use; nothing was changed"},
	{cli.ExitUnhealthy, "'cluster health', 'cluster status': something is wrong; what was asked for is printed"},
	{cli.ExitPartial, "the result is partial: a node that is named did not answer, or nobody serves the named " +
		"partitions; the rest is printed"},
}

// docs/reference/commands.md lists every command that help shows, with its arguments.
func TestCommandsPage(t *testing.T) {
	var codes, b strings.Builder
	for _, e := range exitMeanings {
		fmt.Fprintf(&codes, "| %d | %s |\n", e.code, e.meaning)
	}
	b.WriteString(strings.ReplaceAll(fmt.Sprintf(commandsIntro, codes.String()), "'", "`"))
	root := rootCommand()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n\n| command | what it does |\n|---|---|\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				listCommands(&b, c)
			}
		}
	}
	generated(t, "commands.md", b.String())
}

// listCommands writes a row for a command, or for each command below it.
func listCommands(b *strings.Builder, c *cobra.Command) {
	switch {
	case c.Hidden:
	case c.HasAvailableSubCommands() && c.Name() != "completion":
		if c.Name() == "config" { // the others only say what is below them
			fmt.Fprintf(b, "| `%s` | %s |\n", cell(strings.TrimSuffix(c.UseLine(), " [flags]")), cell(c.Short))
		}
		for _, below := range c.Commands() {
			listCommands(b, below)
		}
	default:
		use := strings.TrimPrefix(strings.TrimSuffix(c.UseLine(), " [flags]"), "penstock ")
		fmt.Fprintf(b, "| `%s` | %s |\n", cell(use), cell(c.Short))
	}
}
