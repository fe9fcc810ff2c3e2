package operate

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"penstock/cmd/engine/internal/cli"
)

// topColumns are the columns of the table that top shows. When the table is too wide for the terminal, top leaves out
// the column with the highest goes first. A column whose goes is 0 always stays.
var topColumns = []struct {
	name string
	goes int
	of   func(*topRow) string
}{
	{"TOPIC", 0, func(r *topRow) string { return r.Topic }},
	{"CHANNEL", 0, func(r *topRow) string { return cli.Dash(r.Channel) }},
	{"PUB/S", 0, func(r *topRow) string { return fmt.Sprintf("%.0f", r.Published) }},
	{"FIN/S", 0, func(r *topRow) string { return fmt.Sprintf("%.0f", r.Confirmed) }},
	{"REQ/S", 4, func(r *topRow) string { return fmt.Sprintf("%.0f", r.Requeued) }},
	{"TIMEOUT/S", 5, func(r *topRow) string { return fmt.Sprintf("%.0f", r.TimedOut) }},
	{"DEPTH", 0, func(r *topRow) string { return fmt.Sprint(r.Depth) }},
	{"IN FLIGHT", 1, func(r *topRow) string { return fmt.Sprint(r.InFlightCount) }},
	{"DEFERRED", 3, func(r *topRow) string { return fmt.Sprint(r.DeferredCount) }},
	{"CONSUMERS", 2, func(r *topRow) string { return fmt.Sprint(r.ClientCount) }},
	{"LAG", 0, lagText},
	{"STATE", 0, func(r *topRow) string { return r.State }},
}

// topCell is a table of texts: goes and names for each column, and a row of cells for each line, the head first.
type topCells struct {
	goes []int
	rows [][]string
}

func topTable(rows []topRow) *topCells {
	t := &topCells{rows: make([][]string, 1+len(rows))}
	for _, c := range topColumns {
		t.goes = append(t.goes, c.goes)
		t.rows[0] = append(t.rows[0], c.name)
		for i := range rows {
			t.rows[1+i] = append(t.rows[1+i], c.of(&rows[i]))
		}
	}
	return t
}

const (
	gapColumns = 2 // what stands between two columns
	leastName  = 7 // letters that are left of a name; the longest state of a channel fits beside it into 80 columns
)

func (t *topCells) widths() (each []int, all int) {
	each = make([]int, len(t.goes))
	for _, row := range t.rows {
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

// fit makes the table fit into a width, 0: any. First, columns go that say the least; then the names of topics and
// channels, which are the first two columns, are shortened, to no less than leastName letters; then the states, which
// are the last column. What still does not fit is cut.
func (t *topCells) fit(width int) {
	for {
		each, all := t.widths()
		if width == 0 || all <= width {
			return
		}
		if at := slices.Index(t.goes, slices.Max(t.goes)); t.goes[at] > 0 {
			t.goes = slices.Delete(t.goes, at, at+1)
			for i := range t.rows {
				t.rows[i] = slices.Delete(t.rows[i], at, at+1)
			}
			continue
		}
		at := 0
		if each[1] > each[0] {
			at = 1
		}
		to := max(leastName, each[at]-(all-width))
		if to >= each[at] {
			last := len(each) - 1
			for _, row := range t.rows[1:] {
				row[last] = fewerStates(row[last], each[last]-(all-width))
			}
			return
		}
		for _, row := range t.rows {
			row[at] = shortened(row[at], max(to, (each[0]+each[1]-(all-width))/2))
		}
	}
}

// fewerStates returns as many of the states, the gravest first, as fit into n letters with the number of the others. Of
// a state there is all or nothing, but of the first.
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

// writeFitting writes the table; no line is longer than width, unless that is 0.
func writeFitting(w io.Writer, t *topCells, width int) error {
	t.fit(width)
	each, _ := t.widths()
	for _, row := range t.rows {
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
