package operate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/settings"
)

// settingFlags are the flags of a command that changes the settings of a topic or a channel: one for each row. Only
// flags that are given change a setting.
type settingFlags[S any] struct {
	rows  settings.Table[S]
	tried S // what flags are parsed into first, so that a wrong one is refused before a node is asked
	given []givenFlag[S]
	file  string
}

// givenFlag has the texts that were given for one setting.
type givenFlag[S any] struct {
	row   *settings.Row[S]
	texts []string
}

// settingFlag is the flag of one setting, as pflag sees it.
type settingFlag[S any] struct {
	settings.Field
	of    *settingFlags[S]
	index int // in given
}

// Set checks the text, and keeps it for apply.
func (f *settingFlag[S]) Set(text string) error {
	f.of.given[f.index].texts = append(f.of.given[f.index].texts, text)
	if err := f.Field.Set(text); err != nil {
		return err
	}
	if why := f.of.rows[f.index].Nonsense(&f.of.tried); why != "" {
		return errors.New(why)
	}
	return nil
}

// Type is one word, which the help shows behind the flag's name.
func (f *settingFlag[S]) Type() string {
	word, _, _ := strings.Cut(f.Field.Type(), ",")
	return word
}

// add adds the flags to a command, and --file, whose format is what the command shown prints.
func (f *settingFlags[S]) add(cmd *cobra.Command, shown string) {
	f.given = make([]givenFlag[S], len(f.rows))
	for i := range f.rows {
		r := &f.rows[i]
		f.given[i].row = r
		flag := cmd.Flags().VarPF(&settingFlag[S]{r.Of(&f.tried), f, i}, r.Flag, "", r.Says)
		if flag.Value.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
		if strings.Contains(flag.Value.Type(), "|") {
			words := strings.Split(flag.Value.Type(), "|")
			cli.Must(cmd.RegisterFlagCompletionFunc(r.Flag,
				cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	cmd.Flags().StringVar(&f.file, "file", "",
		"file with all settings, in the JSON format of "+shown+"; - means standard input")
}

// apply changes s, whose version is at version, as the flags say.
func (f *settingFlags[S]) apply(stdin io.Reader, s *S, version *uint64) error {
	if f.file != "" {
		now := *version // in case the file has none
		*s = *new(S)
		if err := readSettingsFile(f.file, stdin, s); err != nil {
			return err
		}
		*version = cmp.Or(*version, now)
	}
	for _, g := range f.given {
		field := g.row.Of(s)
		for _, text := range g.texts {
			if err := field.Set(text); err != nil {
				return fmt.Errorf("--%s: %w", g.row.Flag, err)
			}
		}
	}
	return nil
}

// readSettingsFile parses JSON strictly, so that a misspelled name is an error and not ignored.
func readSettingsFile(name string, stdin io.Reader, into any) error {
	var data []byte
	var err error
	if name == "-" {
		data, err = io.ReadAll(stdin)
	} else {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return fmt.Errorf("cannot read the settings: %w", err)
	}
	if data, err = WithoutUnits(data); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s holds no settings as penstock prints them with --json: %w", name, err)
	}
	return nil
}

// printSettings prints the settings of a topic or channel.
func printSettings[S any](w io.Writer, version uint64, s *S, rows settings.Table[S]) error {
	t := cli.Table(w)
	fmt.Fprintf(t, "version\t%s\n", orText(version, "0: never configured"))
	for i := range rows {
		text := rows[i].Of(s).String()
		if rows[i].Of(s).IsZero() {
			text = rows[i].Zero
		}
		if text != "" {
			fmt.Fprintf(t, "%s\t%s\n", strings.ReplaceAll(rows[i].Flag, "-", " "), text)
		}
	}
	return t.Flush()
}

// orText returns n as text, or the text zero if n is 0.
func orText[N ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int | ~int64](n N, zero string) string {
	if n == 0 {
		return zero
	}
	return fmt.Sprint(n)
}
