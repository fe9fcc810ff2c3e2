package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"penstock/internal/clip"
)

// PrintJSON prints v as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Table returns a writer that aligns the columns of a table; their texts are separated by tabs.
func Table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// Rows prints a table: head has the names of the columns with tabs between them, and cells what each row has in them.
func Rows[R any](w io.Writer, head string, rows []R, cells func(*R) []any) error {
	t := Table(w)
	fmt.Fprintln(t, head)
	for i := range rows {
		Row(t, cells(&rows[i])...)
	}
	return t.Flush()
}

// Row prints a row of a table.
func Row(t io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t, "\t")
		}
		fmt.Fprint(t, c)
	}
	fmt.Fprintln(t)
}

// Dash returns a text for a table, and - for none.
func Dash(s string) string { return cmp.Or(clip.Plain(s), "-") }

// Stamp returns a time for a table, and - for none.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// Counted returns a number with a noun: 1 message, 2 messages. The noun must be one that gets an s.
func Counted[N ~int | ~int64 | ~uint64](n N, noun string) string { return InNumber(n, noun, noun+"s") }

// InNumber returns a number with the words for one, or for several: 1 line had, 2 lines had.
func InNumber[N ~int | ~int64 | ~uint64](n N, one, several string) string {
	if n == 1 {
		several = one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// IsTerminal says whether w is a terminal.
func IsTerminal(w any) bool {
	file, ok := clip.Unwrap(w).(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// CountBar draws a progress bar if w is a terminal, and nothing elsewhere. total is -1 if it is not known.
func CountBar(w io.Writer, total int64, what string) (set func(int64), finish func()) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func(int64) {}, func() {}
	}
	bar := progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(file), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetDescription(what), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionShowCount(), progressbar.OptionSetItsString("messages"), progressbar.OptionShowIts())
	return func(n int64) { _ = bar.Set64(n) }, func() { _ = bar.Finish() }
}
