package clog

import (
	"testing"
	"time"

	"penstock/tests/support/faultaio"
)

// TestPieceDue checks when the next piece of zeros is written, and how large it is.
func TestPieceDue(t *testing.T) {
	const size = DefaultFileBytes
	for _, tt := range []struct {
		name       string
		done, used int64
		since      int64
		ready      bool
		idle       time.Duration
		want       int64
	}{
		{"the log has no file", 0, usedWhole, 0, false, 0, urgentPieceBytes},
		{"the log has no file, the last piece", size - 4096, usedWhole, 0, false, 0, 4096},
		{"the log is about to take the ready file", 0, usedWhole, 0, true, 0, 0},
		{"nothing used", 0, 0, 0, true, 0, 0},
		{"nothing used, none in reserve", 0, 0, 0, false, 0, 0},
		{"nothing used for long", 0, 0, 0, true, trickleEvery, pieceBytes},
		{"none in reserve, ahead of the log", size / 2, usedWhole / 4, 0, false, trickleEvery - 1, 0},
		{"none in reserve, behind the log", size / 4, usedWhole / 2, 0, false, 0, pieceBytes},
		{"none in reserve, level, but not a quarter ahead", size / 2, usedWhole / 2, 0, false, 0, pieceBytes},
		{"none in reserve, a quarter ahead", size / 2 * 5 / 4, usedWhole / 2, 0, false, 0, 0},
		{"none in reserve, all but a piece at four fifths", size - pieceBytes, usedWhole*4/5 + 1, 0, false, 0, pieceBytes},
		{"one in reserve, begun when the current file was all but full", 0, usedWhole - 1, 0, true, 0, 0},
		{"one in reserve, behind the log", size / 4, 0, size / 2, true, 0, pieceBytes},
		{"one in reserve, a quarter ahead", size / 2 * 5 / 4, usedWhole - 1, size / 2, true, 0, 0},
	} {
		if got := pieceDue(size, tt.done, tt.used, tt.since, tt.ready, tt.idle); got != tt.want {
			t.Errorf("%s: %d bytes, not %d", tt.name, got, tt.want)
		}
	}
}

// TestZerosKeepStep checks that the zeros of the next file do not run ahead of the log, which would delay its commits.
func TestZerosKeepStep(t *testing.T) {
	const size = 1 << 20
	opts := Options{FileBytes: size, Store: testStore}
	l, _, err := Open(faultaio.New(faultaio.Options{}), testArena(t, 64<<10, 3), opts, &replayed{m: newModel()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := newModel()
	l.SetSource(m)
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	for l.Stats().Files == 0 {
		if _, err := l.Step(true); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	m.put(10)
	step(t, l, 5)
	if used := l.prep.used.Load(); used == 0 || used != l.current.pos*usedWhole/size {
		t.Errorf("the preparer knows of %d/%d of the file, of which %d bytes are used", used, usedWhole, l.current.pos)
	}
	for l.Stats().Prepared < 2 {
		time.Sleep(paceEvery) // nothing tells
	}
	// The log used nearly nothing, so every piece but the first few had to wait for its time.
	if took, least := time.Since(began), (size/pieceBytes-4)*trickleEvery; took < least {
		t.Errorf("the next file was written in %v beside a log that used %d bytes; commits would wait", took, l.current.pos)
	}
	if s := l.Stats(); s.ZeroedBytes < 2*size {
		t.Errorf("%d bytes of zeros for two files of %d", s.ZeroedBytes, size)
	}
}
