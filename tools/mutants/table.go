package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// mutant is one planted bug: a line of a file that is replaced, and the tests that should notice, the cheapest first.
type mutant struct {
	name     string
	file     string // from the root of the module
	old, new string // a line, or a part of one; an empty new one takes it out
	tests    []test
	says     string // what the test that fails prints; empty: anything

	limit time.Duration // of one of its test binaries; 0: the usual one
}

// test is what one test binary should run.
type test struct {
	pkg  string // ./internal/node
	run  string // regular expression of -run; empty: all
	tags string
}

func (t test) String() string {
	s := t.pkg
	if t.run != "" {
		s += " -run " + t.run
	}
	if t.tags != "" {
		s += " -tags " + t.tags
	}
	return s
}

// readTable reads the table of mutants. Its format is told at its beginning.
func readTable(path string) ([]*mutant, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []*mutant
	names := map[string]bool{}
	in := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; in.Scan(); number++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if ok && key == "mutant" {
			if names[value] {
				return nil, fmt.Errorf("%s:%d: there are two mutants %q", path, number, value)
			}
			names[value] = true
			all = append(all, &mutant{name: value})
			continue
		}
		if !ok || len(all) == 0 || !all[len(all)-1].set(key, value) {
			return nil, fmt.Errorf("%s:%d: %q is no line of a table of mutants", path, number, line)
		}
	}
	for _, m := range all {
		if m.file == "" || m.old == "" || m.old == m.new || len(m.tests) == 0 {
			return nil, fmt.Errorf("%s: mutant %q lacks a file, an old line, a new line that differs, or a test", path, m.name)
		}
	}
	return all, errors.Join(in.Err())
}

// lines lets one line of the table stand for several of a file.
var lines = strings.NewReplacer(`\n`, "\n", `\t`, "\t")

func (m *mutant) set(key, value string) bool {
	switch key {
	case "file":
		m.file = value
	case "old":
		m.old = lines.Replace(value)
	case "new":
		m.new = lines.Replace(value)
	case "says":
		m.says = value
	case "limit":
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return false
		}
		m.limit = d
	case "test":
		fields := strings.Fields(value)
		if len(fields) == 0 || len(fields) > 3 {
			return false
		}
		t := test{pkg: fields[0]}
		if len(fields) > 1 {
			t.run = fields[1]
		}
		if len(fields) > 2 {
			t.tags = fields[2]
		}
		m.tests = append(m.tests, t)
	default:
		return false
	}
	return true
}

// plant returns the file with the mutant in it. What is replaced must be there exactly once: a table that is behind the
// tree would otherwise test nothing.
func (m *mutant) plant(source []byte) ([]byte, error) {
	switch n := bytes.Count(source, []byte(m.old)); n {
	case 1:
		return bytes.Replace(source, []byte(m.old), []byte(m.new), 1), nil
	case 0:
		return nil, fmt.Errorf("the old line is not in %s: change the table with the code", m.file)
	default:
		return nil, fmt.Errorf("the old line stands in %s %d times: choose another one, or more of it", m.file, n)
	}
}
