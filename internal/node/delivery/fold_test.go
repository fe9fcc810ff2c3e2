package delivery

import (
	"bytes"
	"testing"

	"penstock/internal/node/fold"
	"penstock/segment"
)

func created(name string, at segment.MsgID) fold.Control {
	return fold.Control{Kind: fold.ChannelCreated, Channel: name, ID: at}
}

func ranges(bounds ...segment.MsgID) (out []fold.IDRange) {
	for i := 0; i < len(bounds); i += 2 {
		out = append(out, fold.IDRange{From: bounds[i], To: bounds[i+1]})
	}
	return out
}

// checkFold asserts what holds for every fold: it can be read back, which proves that its lists are sorted and that it
// keeps nothing that nobody wants, and is the same then.
func checkFold(t *testing.T, c *fold.Cursors) {
	t.Helper()
	if back, rest, err := fold.DecodeCursors(c.Append(nil)); err != nil || len(rest) != 0 {
		t.Fatalf("a fold that cannot be read back: %v", err)
	} else if !bytes.Equal(back.Append(nil), c.Append(nil)) {
		t.Fatal("a fold's copy differs from it")
	}
}

func checkRanges(t *testing.T, s *fold.IDSet) {
	t.Helper()
	for i, r := range s.Ranges() {
		if r.From >= r.To || i > 0 && s.Ranges()[i-1].To >= r.From {
			t.Fatalf("ranges %v are not in normal form", s.Ranges())
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func requeuedID(d fold.Deferral) segment.MsgID { return d.ID }
