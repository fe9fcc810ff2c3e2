//go:build manpages

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra/doc"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
)

// In a build with the tag manpages, the program only writes manual pages and the shells' completions, and ends:
//
//	go run -tags manpages ./cmd/engine DIR UNIX_SECONDS VERSION
//
// The packages are made from what it writes, and the product does not contain the libraries that it needs. UNIX_SECONDS
// is the date in the pages, so that two runs write equal bytes.
func init() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: go run -tags manpages ./cmd/engine DIR UNIX_SECONDS VERSION")
		os.Exit(cli.ExitUsage)
	}
	if err := writePages(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "penstock:", err)
		os.Exit(cli.ExitOther)
	}
	os.Exit(0)
}

func writePages(dir, seconds, of string) error {
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	date := time.Unix(unix, 0).UTC()
	root := rootCommand()
	root.DisableAutoGenTag = true
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, name := range []string{"bash", "zsh", "fish"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	for _, write := range []func() error{
		func() error {
			return doc.GenManTree(root, &doc.GenManHeader{
				Section: "1", Date: &date, Source: "penstock " + of, Manual: "Penstock",
			}, dir)
		},
		func() error {
			page := md2man.Render([]byte(settingsPage(date, of)))
			return os.WriteFile(filepath.Join(dir, "penstock.toml.5"), page, 0o644)
		},
		func() error { return root.GenBashCompletionFileV2(filepath.Join(dir, "bash", "penstock"), true) },
		func() error { return root.GenZshCompletionFile(filepath.Join(dir, "zsh", "_penstock")) },
		func() error { return root.GenFishCompletionFile(filepath.Join(dir, "fish", "penstock.fish"), true) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

const manSettingsIntro = `# NAME
penstock.toml - settings of a Penstock node

# SYNOPSIS
**/etc/penstock/penstock.toml**

# DESCRIPTION
The file is TOML, with one key for each setting. The node reads it when it starts, and refuses keys that it does not
know. An environment variable PENSTOCK\_KEY, with the key in capitals, takes precedence over the file, and a flag of
**penstock serve**, with dashes in place of underscores, over both. Sizes take the units KiB, MiB and GiB, durations ms,
s, m and h; both are strings. **penstock config --config FILE** prints every setting with its value and where it comes
from.
`

// settingsPage is penstock.toml(5), in Markdown.
func settingsPage(date time.Time, of string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%% \"PENSTOCK.TOML\" \"5\" %q %q \"Penstock\"\n", date.Format("Jan 2006"), "penstock "+of)
	b.WriteString(manSettingsIntro)
	group := ""
	for _, s := range settings.Table(new(settings.Options)) {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n# %s\n", strings.ToUpper(group))
		}
		preset := s.Preset
		if preset == "" {
			preset = "empty"
		}
		fmt.Fprintf(&b, "\n**%s** (%s; default %s)\n:   %s\n",
			escape(s.Key()), s.Value.Type(), escape(preset), escape(s.Help))
	}
	b.WriteString("\n# SEE ALSO\n**penstock(8)**, **penstock-serve(1)**, **penstock-config(1)**\n")
	return b.String()
}

// escape keeps Markdown from reading a text as markup.
func escape(text string) string {
	return strings.NewReplacer("_", `\_`, "*", `\*`, "<", `\<`, "|", `\|`, "`", "\\`").Replace(text)
}
