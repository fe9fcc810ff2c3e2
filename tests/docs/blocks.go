package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Block is a fenced block of a document, or a comment with commands that only the test runs.
type Block struct {
	Line     int      // of its first line, from 1
	Language string   // console, sh, or another one, which is not run; hidden for a comment
	Text     string   // without the fences
	On       []string // names of the machines that run it; empty: the document's only one
	Stays    bool     // its last command goes on while the blocks behind it are run
	Like     bool     // numbers and widths of columns may differ from those shown
	NotRun   string   // why it cannot be run here
	Exit     int      // the exit code of its last command
}

// A Document is what the test takes from a file.
type Document struct {
	Blocks   []Block
	Machines []string // "name=address" of each; empty: one machine without a network
	Checkout bool     // begins in the sources' directory, not in an empty one
}

// A Step is a command and what it prints.
type Step struct {
	Command string
	Want    string // lines, in which ... stands for anything; a line ... for any number of lines. Empty: not compared
}

// display are languages of blocks that only show something.
var display = []string{"go", "python", "javascript", "json", "toml", "ini", "yaml", "text", "promql"}

// commands are words at the beginning of a line that must not stand in a block that only shows something.
var commands = []string{
	"$", "penstock", "bin/penstock", "make", "curl", "openssl", "sudo", "apt-get", "nsq_tail", "npm", "pip",
}

// hereDocument is the beginning of one, with the word that ends it.
var hereDocument = regexp.MustCompile(`<<-?['"]?(\w+)`)

// Parse reads a document. The error names the line of the first block that does not say how it is run.
func Parse(text string) (Document, error) {
	var d Document
	var marks []string // of the comments directly above
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		switch {
		case strings.HasPrefix(line, "<!--"):
			begin := i
			for !strings.Contains(lines[i], "-->") {
				if i++; i == len(lines) {
					return d, fmt.Errorf("line %d: the comment does not end", begin+1)
				}
			}
			said, _, _ := strings.Cut(strings.Join(lines[begin:i+1], "\n"), "-->")
			said = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(said), "<!--"))
			if hidden, ok, err := hiddenBlock(said, begin+1); err != nil {
				return d, err
			} else if ok {
				d.Blocks = append(d.Blocks, hidden)
				continue
			}
			if !d.head(said) {
				marks = append(marks, said)
			}
		case strings.HasPrefix(line, "```"):
			b, next, err := fenced(lines, i)
			if err == nil {
				err = b.complete(marks)
			}
			if err != nil {
				return d, fmt.Errorf("line %d: %w", i+1, err)
			}
			d.Blocks = append(d.Blocks, b)
			marks, i = nil, next
		case line != "":
			marks = nil
		}
	}
	return d, nil
}

// hiddenBlock returns the commands in a comment, if it has some: run COMMANDS, or run on: NAMES and the commands below.
func hiddenBlock(said string, line int) (b Block, ok bool, err error) {
	script, ok := strings.CutPrefix(said, "run")
	if !ok || !strings.HasPrefix(script, "\n") && !strings.HasPrefix(script, " ") {
		return b, false, nil
	}
	b = Block{Line: line, Language: "hidden", Text: script + "\n"}
	first, rest, _ := strings.Cut(script, "\n")
	if first = strings.TrimSpace(first); strings.HasPrefix(first, "on:") {
		b.Text = rest + "\n"
		err = b.mark(first)
	}
	return b, true, err
}

// head takes a comment about the whole document, and says whether it is one.
func (d *Document) head(said string) bool {
	if list, ok := strings.CutPrefix(said, "machines:"); ok {
		d.Machines = names(list)
		return true
	}
	if said == "begins in the checkout" {
		d.Checkout = true
		return true
	}
	return false
}

// fenced reads the block whose first fence is in line i, and returns the number of its last line.
func fenced(lines []string, i int) (Block, int, error) {
	indent := lines[i][:strings.Index(lines[i], "`")]
	b := Block{Line: i + 1, Language: strings.TrimSpace(strings.Trim(strings.TrimSpace(lines[i]), "`"))}
	for j := i + 1; j < len(lines); j++ {
		if strings.TrimSpace(lines[j]) == "```" {
			return b, j, nil
		}
		b.Text += strings.TrimPrefix(lines[j], indent) + "\n"
	}
	return b, 0, fmt.Errorf("the block does not end")
}

// complete applies the comments above a block, and checks that it says how it is run.
func (b *Block) complete(marks []string) error {
	run := b.Runs()
	for _, said := range marks {
		if err := b.mark(said); err != nil && run {
			return err
		}
	}
	switch {
	case b.Language == "":
		return fmt.Errorf("the block has no language: console and sh are run, text is not")
	case b.NotRun != "", run:
		return nil
	case !slices.Contains(display, b.Language):
		return fmt.Errorf("nothing runs a block of %s", b.Language)
	}
	for line := range strings.Lines(b.Text) {
		if words := strings.Fields(line); b.Language == "text" && len(words) > 0 && slices.Contains(commands, words[0]) {
			return fmt.Errorf("a block of text has the command %q: it would not be run", strings.TrimSpace(line))
		}
	}
	return nil
}

// Runs says whether the block is one of commands.
func (b *Block) Runs() bool { return slices.Contains([]string{"console", "sh", "hidden"}, b.Language) }

// mark applies what a comment says: not run: REASON, or any of on: NAMES; stays; like; exit: CODE.
func (b *Block) mark(said string) error {
	if reason, ok := strings.CutPrefix(said, "not run:"); ok {
		if b.NotRun = strings.Join(strings.Fields(reason), " "); b.NotRun == "" {
			return fmt.Errorf("the block is not run, and does not say why")
		}
		return nil
	}
	for part := range strings.SplitSeq(said, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), ":")
		switch name {
		case "on":
			b.On = names(value)
		case "stays":
			b.Stays = true
		case "like":
			b.Like = true
		case "exit":
			code, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				return err
			}
			b.Exit = code
		default:
			return fmt.Errorf("the comment above the block says %q, which means nothing", said)
		}
	}
	return nil
}

func names(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", \n", r) })
}

// Steps returns the commands of a block that is run. A console has those behind "$ ", each with what it prints; of it
// belong to a command the lines behind a backslash, and those of a here-document. Any other block is one command.
func (b *Block) Steps() ([]Step, error) {
	if b.Language != "console" {
		return []Step{{Command: b.Text}}, nil
	}
	var steps []Step
	lines := strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		switch {
		case ok:
			for strings.HasSuffix(command, "\\") && i+1 < len(lines) {
				i++
				command += "\n" + lines[i]
			}
			if m := hereDocument.FindStringSubmatch(command); m != nil {
				for i+1 < len(lines) && !strings.HasSuffix(command, "\n"+m[1]) {
					i++
					command += "\n" + lines[i]
				}
			}
			steps = append(steps, Step{Command: command})
		case len(steps) == 0:
			return nil, fmt.Errorf("line %d: a block of console begins with a command behind \"$ \"", b.Line)
		default:
			steps[len(steps)-1].Want += lines[i] + "\n"
		}
	}
	return steps, nil
}
