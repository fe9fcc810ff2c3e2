package batch

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"penstock/tests/support/formattest"
)

// The table of FORMAT.md equals the constants of the code: same fields, same offsets, no gap.
func TestFormatTables(t *testing.T) {
	fields := []struct {
		name   string
		offset int
	}{
		{"magic", offMagic},
		{"version", offVersion},
		{"codec", offCodec},
		{"flags", offFlags},
		{"bodyBytes", offBodyBytes},
		{"count", offCount},
		{"created", offCreated},
		{"producerID", offProducerID},
		{"producerEpoch", offProducerEpoch},
		{"baseSequence", offBaseSequence},
		{"bodyCRC", offBodyCRC},
		{"reserved", offReserved},
		{"position", offPosition},
		{"firstID", offFirstID},
		{"epoch", offEpoch},
		{"appended", offAppended},
		{"prevCRC", offPrevCRC},
		{"headerCRC", offHeaderCRC},
	}
	rows := formattest.Tables(t)["Batch, version 1"]
	if len(rows) != len(fields) {
		t.Fatalf("%d rows, %d fields", len(rows), len(fields))
	}
	end := 0
	for i, row := range rows {
		if row[2] != fields[i].name || row[0] != strconv.Itoa(fields[i].offset) || row[0] != strconv.Itoa(end) {
			t.Errorf("%s stands at %s; the code has %s at %d, and the row before ends at %d",
				row[2], row[0], fields[i].name, fields[i].offset, end)
		}
		size, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		end += size
	}
	if end != HeaderBytes {
		t.Errorf("the table ends at %d, the header at %d", end, HeaderBytes)
	}
}

// What FORMAT.md says outside of the table is what the code does.
func TestFormatText(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	example := AppendRecord(nil, &Record{TimeDelta: 3, Body: []byte("hello")})
	for _, want := range []string{
		fmt.Sprintf("header of %d bytes and a body", HeaderBytes), "at most 16 MiB (16,777,216 bytes)",
		fmt.Sprintf("count uvarint (1 .. %d)", MaxHeaderCount), fmt.Sprintf("`% x`", example),
		fmt.Sprintf("message 2 of partition 1 is `%s`", MakeID(1, 2)),
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("FORMAT.md does not say %q", want)
		}
	}
	if MaxBatchBytes != 16_777_216 {
		t.Error("MaxBatchBytes changed")
	}
}
