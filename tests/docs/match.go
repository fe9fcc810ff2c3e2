package docs

import (
	"regexp"
	"strings"
)

// varying are texts that differ from run to run: numbers, ids, and the width of columns.
var varying = regexp.MustCompile(`\b[0-9a-f]{16}\b|\d+|  +`)

// Match says whether the output of a command is what the document shows. In want, ... stands for any characters of a
// line, and a line of only ... for any number of lines; space at the end of lines does not count. With open, more may
// follow. With like, every number stands for any number, 16 hex digits for any others, and two or more spaces for any
// number of spaces.
func Match(want, got string, open, like bool) bool {
	var pattern strings.Builder
	pattern.WriteString("^")
	for line := range strings.Lines(strings.TrimRight(want, " \n") + "\n") {
		line = strings.TrimRight(line, " \n")
		if line == "..." {
			pattern.WriteString("(?s:.*\n)?")
			continue
		}
		parts := strings.Split(line, "...")
		for i, part := range parts {
			if parts[i] = regexp.QuoteMeta(part); like {
				parts[i] = varying.ReplaceAllStringFunc(parts[i], anyLike)
			}
		}
		pattern.WriteString(strings.Join(parts, ".*") + "[ \t\r]*\n")
	}
	if !open {
		pattern.WriteString("\\s*$")
	}
	return regexp.MustCompile(pattern.String()).MatchString(strings.TrimRight(got, " \n") + "\n")
}

// anyLike is the pattern of texts like one that varies.
func anyLike(text string) string {
	switch {
	case text[0] == ' ':
		return " +"
	case len(text) == 16:
		return "[0-9a-f]{16}"
	}
	return `\d+`
}
