package formattest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Tables returns the rows of every table of the package's FORMAT.md, keyed by the heading above the table. The row with
// the column names is left out.
func Tables(t testing.TB) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	found, heading := make(map[string][][]string), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if h, ok := strings.CutPrefix(line, "#"); ok {
			heading = strings.TrimSpace(strings.TrimLeft(h, "#"))
		}
		if cells, ok := strings.CutPrefix(line, "|"); ok && !strings.HasPrefix(line, "|---") {
			row := strings.Split(strings.TrimSuffix(cells, "|"), "|")
			for i := range row {
				row[i] = strings.TrimSpace(row[i])
			}
			found[heading] = append(found[heading], row)
		}
	}
	for h := range found {
		found[h] = found[h][1:]
	}
	return found
}

// Layout compares a table of fields (offset, size, name) with the offsets of the fields in the code, in order, and the
// end of the last field with size. Each field must begin where the one before it ends.
func Layout(t testing.TB, rows [][]string, size int, offsets ...int) {
	t.Helper()
	if len(rows) != len(offsets) {
		t.Fatalf("FORMAT.md has %d fields, the code has %d", len(rows), len(offsets))
	}
	end := 0
	for i, row := range rows {
		if row[0] != strconv.Itoa(offsets[i]) || offsets[i] != end {
			t.Errorf("FORMAT.md has %s at %s, the code has it at %d, and the field before ends at %d",
				row[2], row[0], offsets[i], end)
		}
		n, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		end += n
	}
	if end != size {
		t.Errorf("the fields in FORMAT.md end at %d, the code says %d", end, size)
	}
}

// Numbers compares a table whose rows begin with a name and a number with those of the code. Both must have all.
func Numbers(t testing.TB, rows [][]string, code map[string]int) {
	t.Helper()
	for _, row := range rows {
		if n, known := code[row[0]]; !known || row[1] != strconv.Itoa(n) {
			t.Errorf("FORMAT.md says that %s is %s, the code has %d (known: %v)", row[0], row[1], n, known)
		}
	}
	if len(rows) != len(code) {
		t.Errorf("FORMAT.md has %d numbers, the code has %d: %v", len(rows), len(code), code)
	}
}

// Golden reads the file name, which holds hex digits, and returns its bytes; the test fails unless they equal p. With
// write, Golden creates the file if it does not exist. It never changes an existing file.
func Golden(t testing.TB, name string, p []byte, write bool) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && write {
		text = []byte(HexLines(p))
		err = os.WriteFile(name, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	stored, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, p) {
		t.Fatalf("the code writes\n%swhere %s has\n%s", HexLines(p), name, text)
	}
	return stored
}

// HexLines formats p as hex digits, 16 bytes per line.
func HexLines(p []byte) string {
	var b strings.Builder
	for line := range slices.Chunk(p, 16) {
		fmt.Fprintf(&b, "% x\n", line)
	}
	return b.String()
}
