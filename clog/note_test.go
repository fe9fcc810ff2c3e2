package clog

import (
	"testing"

	"penstock/segment/aio"
)

// The next process believes the notes of where logs begin if this one said that they are right, and no version ran in
// between that does not know them: that one writes a mark without the flag with its first file. In a directory in which
// a version may run that writes no marks at all, they are never believed.
func TestNotesAreOfThisVersion(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d, m := written(t, arena)
	run := func(o Options, say func(l *Log)) *Report {
		t.Helper()
		o.MaxLiveBytes = 1 << 20
		l, report, err := Open(d, arena, o, &replayed{m: m})
		if err != nil {
			t.Fatal(err)
		}
		l.SetSource(&trivial{})
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := l.Step(false); err != nil {
				t.Fatal(err)
			}
			if l.current == nil {
				t.Fatal("it begins no file")
			}
			if say != nil {
				say(l)
				say = nil
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return report
	}
	older := func() { // it begins a file and writes the mark as it knows it
		mark, _ := markOn(t, d)
		mark.Counter, mark.Noted = mark.Counter+1, false
		if err := replaceMark(d, &mark); err != nil {
			t.Fatal(err)
		}
	}
	noted := func(l *Log) {
		file, _ := markOn(t, d)
		l.NoteStarts()
		if _, err := l.Step(false); err != nil {
			t.Fatal(err)
		}
		if mark, _ := markOn(t, d); !mark.Noted || mark.File != file.File || !l.StartsNoted() {
			t.Errorf("they were made right, and the mark says %+v", mark)
		}
	}
	below := marked()
	below.MarkRequired = false
	for i, step := range []struct {
		o     Options
		say   func(l *Log)
		after func()
		want  bool
	}{
		{o: marked()},
		{o: marked(), say: noted},
		{o: marked(), want: true},
		{o: marked(), want: true, after: older},
		{o: marked()},
		{o: marked(), say: noted},
		{o: below},
		{o: marked()},
	} {
		if r := run(step.o, step.say); r.Noted != step.want {
			t.Errorf("process %d: the notes are believed: %v", i, r.Noted)
		}
		if step.after != nil {
			step.after()
		}
	}
}
