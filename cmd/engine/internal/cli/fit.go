package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"penstock/internal/clip"
)

// Column is a column of a table whose rows are of the type R.
type Column[R any] struct {
	name  string
	goes  int
	short bool
	of    func(*R) string
}

// Col makes a column. Of a table that is too wide for its terminal, those columns go whose goes is the highest; 0: it
// stays.
func Col[R any](name string, goes int, of func(*R) string) Column[R] {
	return Column[R]{name: name, goes: goes, of: of}
}

// TextCol makes a column whose texts, such as names, may be cut, to no less than leastName letters.
func TextCol[R any](name string, goes int, of func(*R) string) Column[R] {
	return Column[R]{name: name, goes: goes, short: true, of: of}
}

const (
	gapColumns = 2 // what stands between two columns
	leastName  = 7 // letters that are left of a name; the longest state of a channel fits beside it into 80 columns
)

// TerminalWidth returns the columns of a terminal, and 0 for anything else: a table that goes there is as wide as it
// is.
func TerminalWidth(w io.Writer) int {
	if IsTerminal(w) {
		if columns, _, err := term.GetSize(int(clip.Unwrap(w).(*os.File).Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 0
}

// WriteFitting writes a table; no line is longer than width, unless that is 0. First, columns go that say the least;
// then texts that may be cut are shortened, the longest first; then the last column, which has states, loses whole
// states from its end, and the first state is cut. A line that is still too long is cut.
func WriteFitting[R any](w io.Writer, columns []Column[R], rows []R, width int) error {
	t := &cells{lines: make([][]string, 1+len(rows))}
	for _, c := range columns {
		t.goes, t.short = append(t.goes, c.goes), append(t.short, c.short)
		t.lines[0] = append(t.lines[0], c.name)
		for i := range rows {
			t.lines[1+i] = append(t.lines[1+i], c.of(&rows[i]))
		}
	}
	return t.write(w, width)
}

// cells is a table of texts, the head first.
type cells struct {
	goes  []int
	short []bool
	lines [][]string
}

func (t *cells) widths() (each []int, all int) {
	each = make([]int, len(t.goes))
	for _, row := range t.lines {
		for i, cell := range row {
			each[i] = max(each[i], len([]rune(cell)))
		}
	}
	all = gapColumns * (len(each) - 1)
	for _, n := range each {
		all += n
	}
	return each, all
}

func (t *cells) fit(width int) {
	for {
		each, all := t.widths()
		over := all - width
		if width == 0 || over <= 0 {
			return
		}
		if at := slices.Index(t.goes, slices.Max(t.goes)); t.goes[at] > 0 {
			t.remove(at)
			continue
		}
		if t.shorten(each, over) {
			continue
		}
		for _, row := range t.lines[1:] {
			row[len(row)-1] = fewerStates(row[len(row)-1], each[len(row)-1]-over)
		}
		return
	}
}

func (t *cells) remove(at int) {
	t.goes, t.short = slices.Delete(t.goes, at, at+1), slices.Delete(t.short, at, at+1)
	for i := range t.lines {
		t.lines[i] = slices.Delete(t.lines[i], at, at+1)
	}
}

// shorten cuts the widest columns that may be cut: to the width of the next one at least, or so that the table fits. It
// returns false if there is nothing left to cut.
func (t *cells) shorten(each []int, over int) bool {
	widest, next, count := 0, leastName, 0
	for i, n := range each {
		switch {
		case !t.short[i] || n < widest:
			if t.short[i] {
				next = max(next, n)
			}
		case n == widest:
			count++
		default:
			next, widest, count = max(next, widest), n, 1
		}
	}
	if widest <= leastName {
		return false
	}
	to := max(next, widest-(over+count-1)/count)
	for i := range each {
		if t.short[i] && each[i] == widest {
			for _, row := range t.lines {
				row[i] = shortened(row[i], to)
			}
		}
	}
	return true
}

// fewerStates returns as many of the states, the gravest first, as fit into n letters with the number of the others.
func fewerStates(states string, n int) string {
	words := strings.Split(states, ", ")
	for some := len(words); some > 0; some-- {
		text := strings.Join(words[:some], ", ")
		if more := len(words) - some; more > 0 {
			text += fmt.Sprintf(" +%d", more)
		}
		if len([]rune(text)) <= n {
			return text
		}
	}
	return shortened(states, max(n, 1))
}

// shortened returns a text of at most n letters; one that is longer ends with an ellipsis.
func shortened(text string, n int) string {
	if letters := []rune(text); len(letters) > n {
		return string(letters[:n-1]) + "…"
	}
	return text
}

func (t *cells) write(w io.Writer, width int) error {
	t.fit(width)
	each, _ := t.widths()
	for _, row := range t.lines {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", each[i]-len([]rune(cell))+gapColumns))
			}
		}
		text := line.String()
		if width > 0 {
			text = shortened(text, width)
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}
