package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/client"
	"penstock/internal/meta"
	"penstock/internal/node/fold"
)

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
func least(v value) string {
	n := int64(0)
	switch v := v.(type) {
	case countValue:
		n = int64(v.least)
	case bytesValue:
		n = v.least
	case intBytesValue:
		n = v.least
	case durationValue:
		if v.least > 0 {
			return formatDuration(v.least)
		}
	}
	if n == 0 {
		return ""
	}
	if v.Type() == "bytes" {
		return formatBytes(n)
	}
	return formatCount(n)
}

const settingsIntro = `# Settings

This page has every setting of a node ('engine serve'), of a topic and of a channel. It is written by
'go test ./cmd/engine -run TestSettingsPage -update', from the same tables that the program uses.

## Where the settings of a node come from

| place | form | example |
|---|---|---|
| a flag of 'engine serve' | '--NAME' | '--http-address 10.0.0.5:4151' |
| the environment | 'ENGINE_', then the name in capitals, with '_' for '-' | 'ENGINE_HTTP_ADDRESS=10.0.0.5:4151' |
| a TOML file | the name with '_' for '-', without sections | 'http_address = "10.0.0.5:4151"' |

A flag wins over the environment, the environment over the file, and the file over the default. 'engine config' prints
every setting with its value and the place it comes from; it takes the same flags. 'engine config --defaults' prints a
TOML file with all settings commented out. An unknown name is an error in each of the three places.

A node reads its settings once, when it starts. It reads the files of certificates, keys, tokens, passwords and secrets
that settings name again within 5 s when one of them has changed, at SIGHUP, and by 'engine reload', which says what
came of each. Until the files of a set can be used together, what was read before holds on.

| other variable | what for |
|---|---|
| 'ENGINE_CONFIG' | the TOML file, as '--config' |
| '` + client.EnvAddress + `' | the node that commands such as 'engine topic list' ask, as their '--http-address' |
| '` + client.EnvNodes + `' | the nodes that 'engine pub', 'sub' and 'read' ask first, as their '--nodes' |
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
given, it is the empty text. A value below the least one is refused.
`

const topicIntro = `
## A topic

'engine topic set TOPIC' changes these, 'engine topic settings TOPIC' shows them. Over HTTP they are a JSON document at
'/topic/settings', with the names of the second column; times are in milliseconds, sizes in bytes, and 'none' is -1. How
they work together: [Settings of a topic](../channels.md#settings-of-a-topic).

| flag | JSON | type | default | what for |
|---|---|---|---|---|
`

const channelIntro = `
## A channel

'engine channel set TOPIC CHANNEL' changes these, 'engine channel settings TOPIC CHANNEL' shows them. Over HTTP they are
a JSON document at '/channel/settings'. How they work together:
[Settings of a channel](../channels.md#settings-of-a-channel).

| flag | JSON | type | default | what for |
|---|---|---|---|---|
`

func TestSettingsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(settingsIntro, "'", "`"))
	c := newConfig(pflag.NewFlagSet("", pflag.ContinueOnError))
	group := ""
	for _, s := range c.settings {
		if s.group != group {
			group = s.group
			fmt.Fprintf(&b, "\n## %s\n\n| setting | type | default | least | what for |\n|---|---|---|---|---|\n", group)
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s | %s |\n",
			s.name, typeOf(s.value.Type()), quoted(s.preset), quoted(least(s.value)), cell(s.help))
	}
	b.WriteString(strings.ReplaceAll(topicIntro, "'", "`"))
	ofObject(t, &b, meta.TopicSettings{}, "topic", "set")
	b.WriteString(strings.ReplaceAll(channelIntro, "'", "`"))
	ofObject(t, &b, fold.ChannelSettings{}, "channel", "set")
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

// jsonNames are the fields of settings whose names do not follow from their flags.
var jsonNames = map[string]string{
	"rate": "rate_per_second", "filter": "filter.rules", "filter-all": "filter.all", "filter-invert": "filter.invert",
}

// ofObject writes a row for each flag of a command that changes the settings of a topic or channel. Every field of
// these settings but the version has a flag.
func ofObject(t *testing.T, b *strings.Builder, settings any, command ...string) {
	t.Helper()
	fields := map[string]bool{}
	of := reflect.TypeOf(settings)
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		fields[name] = true
	}
	delete(fields, "version")
	cmd, _, err := rootCommand().Find(command)
	must(t, err)
	ownFlags(cmd, func(f *pflag.Flag) {
		name := jsonNames[f.Name]
		if name == "" {
			name = strings.ReplaceAll(f.Name, "-", "_")
		}
		top, _, _ := strings.Cut(name, ".")
		switch {
		case f.Name == "file", f.Name == "no-filter":
			return // no settings of their own
		case fieldOf(of, top) || fields[top]:
		case fieldOf(of, top+"_ms"):
			top, name = top+"_ms", name+"_ms"
		default:
			t.Errorf("the flag --%s of engine %s sets no field that this test knows", f.Name, strings.Join(command, " "))
		}
		delete(fields, top)
		fmt.Fprintf(b, "| `--%s` | `%s` | %s | %s | %s |\n",
			f.Name, name, typeOf(f.Value.Type()), quoted(strings.Trim(f.DefValue, "[]")), cell(f.Usage))
	})
	for name := range fields {
		t.Errorf("no flag of engine %s sets %s", strings.Join(command, " "), name)
	}
}

func fieldOf(of reflect.Type, name string) bool {
	for i := range of.NumField() {
		if tag, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); tag == name {
			return true
		}
	}
	return false
}

// ownFlags calls f for the flags that only this command has, in their order.
func ownFlags(cmd *cobra.Command, f func(*pflag.Flag)) {
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && flag.Name != "help" && cmd.InheritedFlags().Lookup(flag.Name) == nil {
			f(flag)
		}
	})
}

const commandsIntro = `# Commands

All commands of 'engine'. 'engine COMMAND --help' describes the arguments and flags of each. Those that talk to a node
take '--http-address' (or the variable 'PENSTOCK_SERVER'), '--tls-ca', '--tls-cert', '--tls-key' and '--token-file' (or
'PENSTOCK_TOKEN'), and print JSON with '--json'; 'pub', 'read' and 'sub' name nodes with '--nodes' (or
'PENSTOCK_NODES'). 'engine completion --help' says how a shell completes names of topics, channels and nodes.

The exit code is 0 if the command did what it says, and otherwise:

| code | meaning |
|---|---|
%s
This page is written by 'go test ./cmd/engine -run TestCommandsPage -update'.
`

// exitMeanings are the exit codes with what they tell scripts.
var exitMeanings = []struct {
	code    int
	meaning string
}{
	{exitOther, "any other error"},
	{exitUsage, "a wrong flag, variable, configuration file or argument; nothing was touched"},
	{exitData, "the data directory cannot be used; nothing in it was changed"},
	{exitAddress, "the node cannot listen on an address; no data directory was made"},
	{exitForgot, "the commit log of a single node lacks messages that were answered OK, because files of it are gone " +
		"or an older state of the disk came back; nothing was changed: see 'engine accept-loss'"},
	{exitMemory, "the node needs more memory than the process may use; nothing was changed, and it says how much it " +
		"needs"},
	{exitUnhealthy, "'cluster health', 'cluster status': something is wrong; what was asked for is printed"},
	{exitPartial, "the result is partial: a node that is named did not answer, or nobody serves the named partitions; " +
		"the rest is printed"},
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
		for _, below := range c.Commands() {
			listCommands(b, below)
		}
	default:
		use := strings.TrimSuffix(c.UseLine(), " [flags]")
		fmt.Fprintf(b, "| `%s` | %s |\n", cell(use), cell(c.Short))
	}
}
