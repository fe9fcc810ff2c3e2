package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// documents returns README.md and the documents in docs/, except the one that is written from the commands.
func documents(t *testing.T) []string {
	t.Helper()
	found := []string{"../../README.md"}
	must(t, filepath.WalkDir("../../docs", func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && d.Name() == "node_modules" {
			return filepath.SkipDir
		}
		if err == nil && filepath.Ext(path) == ".md" && filepath.Base(path) != "commands.md" {
			found = append(found, path)
		}
		return err
	}))
	return found
}

var (
	fenced = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```")
	inline = regexp.MustCompile("`([^`]+)`")
	spaces = regexp.MustCompile(`\s+`)
)

// commandLines returns the calls of the program in a document: lines of fenced blocks, and what stands in backquotes.
func commandLines(text string) (calls []string) {
	var lines []string
	for _, m := range fenced.FindAllStringSubmatch(text, -1) {
		block := strings.ReplaceAll(m[1], "\\\n", " ")
		lines = append(lines, strings.FieldsFunc(block, func(r rune) bool { return strings.ContainsRune("\n;|&", r) })...)
	}
	for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		lines = append(lines, m[1])
	}
	for _, line := range lines {
		line, _, _ = strings.Cut(spaces.ReplaceAllString(strings.TrimSpace(line), " "), " #")
		line = strings.TrimPrefix(strings.TrimPrefix(line, "$ "), "bin/")
		if strings.HasPrefix(line, "penstock ") || strings.HasPrefix(line, oldName) {
			calls = append(calls, line)
		}
	}
	return calls
}

// wrongIn says what a call names that does not exist: a command, or one of its flags. "": all of it exists.
func wrongIn(root *cobra.Command, call string) string {
	root.InitDefaultCompletionCmd()
	words := strings.FieldsFunc(call, func(r rune) bool { return strings.ContainsRune(" []", r) })[1:]
	cmd := root
	for len(words) > 0 {
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == words[0] })
		if i < 0 {
			break
		}
		cmd, words = cmd.Commands()[i], words[1:]
	}
	if cmd.HasSubCommands() && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		return "the command " + words[0]
	}
	cmd.InitDefaultHelpFlag()
	for i := 0; i < len(words) && words[i] != "--" && !cmd.DisableFlagParsing; i++ {
		if !strings.HasPrefix(words[i], "-") {
			continue
		}
		f := flagNamed(cmd, words[i])
		if f == nil {
			return "the flag " + words[i]
		}
		if f.NoOptDefVal == "" && !strings.Contains(words[i], "=") {
			i++ // its value
		}
	}
	return ""
}

// flagNamed returns a command's flag that is written -f, --flag or --flag=value, or nil.
func flagNamed(cmd *cobra.Command, word string) *pflag.Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	switch {
	case strings.HasPrefix(word, "--"):
		return cmd.Flag(name)
	case len(name) == 1:
		return cmd.Flags().ShorthandLookup(name)
	}
	return nil
}

// oldName begins a call of the program by its old name, which packages still install, and documents do not say.
const oldName = "engine "

// Every call of the program in the documents names a command and flags that exist.
func TestDocumentedCommandsExist(t *testing.T) {
	count := 0
	for _, document := range documents(t) {
		text, err := os.ReadFile(document)
		must(t, err)
		calls := commandLines(string(text))
		count += len(calls)
		for _, call := range calls {
			if strings.HasPrefix(call, oldName) {
				t.Errorf("%s: %s: the program is called penstock", document, call)
			} else if wrong := wrongIn(rootCommand(), call); wrong != "" {
				t.Errorf("%s: %s: there is no such thing as %s", document, call, wrong)
			}
		}
	}
	if count < 100 {
		t.Errorf("the documents have only %d commands", count)
	}
}

func TestWrongIn(t *testing.T) {
	for call, want := range map[string]string{
		"penstock cluster drain n2 --wait 5m --http-address h:1": "",
		"penstock debug bundle [-o FILE] [--all]":                "",
		"penstock cluster drian n2":                              "the command drian",
		"penstock nothing":                                       "the command nothing",
		"penstock cluster drain n2 --wiat 5m":                    "the flag --wiat",
		"penstock cluster drain n2 -z":                           "the flag -z",
		"penstock dev-cluster -- --anything":                     "",
	} {
		if got := wrongIn(rootCommand(), call); got != want {
			t.Errorf("%s: %q, want %q", call, got, want)
		}
	}
	text := "```\npenstock a \\\n  --b # c\n$ x | bin/penstock d\n```\n" +
		"```console\n$ bin/penstock g\n```\nthen `engine e\n--f` and `penstocks`"
	want := []string{"penstock a --b", "penstock d", "penstock g", "engine e --f"}
	if got := commandLines(text); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Everything that explains a channel's limit of messages in flight says how it is divided in a cluster.
func TestLimitInFlightIsExplained(t *testing.T) {
	set, _, err := rootCommand().Find([]string{"channel", "set"})
	must(t, err)
	texts := map[string]string{"the help": "max_in_flight " + set.Flags().Lookup("max-in-flight").Usage}
	for _, name := range []string{"openapi.yaml", "contribute/behaviours.md", "channels.md", "reference/settings.md"} {
		text, err := os.ReadFile("../../docs/" + name)
		must(t, err)
		texts[name] = string(text)
	}
	share := regexp.MustCompile(`(?s)max[_-]in[_-]flight.*(each\s+partition\s+has\s+a\s+share|` +
		`among\s+the\s+topic's\s+partitions)`)
	for where, text := range texts {
		if !share.MatchString(text) {
			t.Errorf("%s does not say how the limit is divided", where)
		}
	}
}
