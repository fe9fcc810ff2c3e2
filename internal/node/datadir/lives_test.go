package datadir

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/tests/support/faultaio"
)

func bootOf(n int) uuid.UUID { return uuid.UUID{14: byte(n >> 8), 15: byte(n)} }

// lives makes a list of lives: those of a negative number are registered.
func livesOf(numbers ...int) (all []Life) {
	for _, n := range numbers {
		all = append(all, Life{bootOf(max(n, -n)), n < 0})
	}
	return all
}

var ownStore, otherStore = uuid.UUID{1}, uuid.UUID{2}

func rowOf(boot, level int, store uuid.UUID) *meta.Node {
	return &meta.Node{Boot: bootOf(boot), StoreLevel: level, Store: store}
}

// wrote is a row whose directory's commit log reached a group.
func wrote(row *meta.Node, group uint64) *meta.Node {
	row.Logged = group
	return row
}

// What a directory is to the row of its node, if its commit log ends with group 50, and the lives that it keeps when
// process 9 registers.
func TestJudgeLives(t *testing.T) {
	for _, c := range []struct {
		name  string
		lives []Life
		row   *meta.Node
		want  meta.Life
		next  []Life
	}{
		{"the first start", nil, nil, meta.LifeFirst, livesOf(9)},
		{"a row that went", livesOf(-1), nil, meta.LifeFirst, livesOf(-1, 9)},
		{"a replaced disk", nil, rowOf(1, 4, otherStore), meta.LifeFirst, livesOf(9)},
		{"before lives were kept", nil, rowOf(1, 3, ownStore), meta.LifeFirst, livesOf(-1, 9)},
		{"from before levels", nil, rowOf(1, 0, ownStore), meta.LifeFirst, livesOf(-1, 9)},
		{"a process of another version was turned away", nil, rowOf(0, 3, ownStore), meta.LifeFirst, livesOf(9)},
		{"older than the first life that was kept", nil, rowOf(1, 4, ownStore), meta.LifeUnknown, livesOf(9)},
		{"registered", livesOf(-1), rowOf(1, 4, ownStore), meta.LifeCurrent, livesOf(-1, 9)},
		{"registered last", livesOf(-1, -2), rowOf(2, 4, ownStore), meta.LifeCurrent, livesOf(-1, -2, 9)},
		{"a crash before the row was written", livesOf(-1, 2), rowOf(1, 4, ownStore), meta.LifeCurrent, livesOf(-1, 2, 9)},
		{"a crash behind it", livesOf(-1, 2), rowOf(2, 4, ownStore), meta.LifeCurrent, livesOf(-1, -2, 9)},
		{
			"the middle one of three that were tried", livesOf(-1, 2, 3, 4), rowOf(3, 4, ownStore), meta.LifeCurrent,
			livesOf(-1, 2, -3, 4, 9),
		},
		{"only tried", livesOf(1), rowOf(1, 4, ownStore), meta.LifeCurrent, livesOf(-1, 9)},
		{"older metadata", livesOf(-1, -2), rowOf(1, 4, ownStore), meta.LifePast, livesOf(-1, -2, 9)},
		{"older metadata, tried then", livesOf(-1, 2, -3), rowOf(2, 4, ownStore), meta.LifePast, livesOf(-1, 2, -3, 9)},
		{"an older state", livesOf(-1, -2), rowOf(3, 4, ownStore), meta.LifeUnknown, livesOf(-1, -2, 9)},
		{"an older state, tried", livesOf(-1, 2), rowOf(3, 4, ownStore), meta.LifeUnknown, livesOf(-1, 2, 9)},
		{"another directory registered meanwhile", livesOf(-1), rowOf(3, 4, otherStore), meta.LifeUnknown, livesOf(-1, 9)},
		{
			"an older version's copy registered meanwhile", livesOf(-1), rowOf(3, 3, ownStore), meta.LifeUnknown,
			livesOf(-1, 9),
		},
		{"a copy was turned away", livesOf(-1), rowOf(0, 1, ownStore), meta.LifeUnknown, livesOf(-1, 9)},
		{
			"registered, and it has all groups", livesOf(-1), wrote(rowOf(1, 4, ownStore), 50), meta.LifeCurrent,
			livesOf(-1, 9),
		},
		{"a state of the last life", livesOf(-1), wrote(rowOf(1, 4, ownStore), 51), meta.LifeUnknown, livesOf(-1, 9)},
		{
			"a state of the last life, tried", livesOf(-1, 2), wrote(rowOf(2, 4, ownStore), 51), meta.LifeUnknown,
			livesOf(-1, 2, 9),
		},
		{
			"a state of before a life that was tried", livesOf(-1, 2), wrote(rowOf(1, 4, ownStore), 51), meta.LifeUnknown,
			livesOf(-1, 2, 9),
		},
		{"a state of a life that was not kept", nil, wrote(rowOf(1, 3, ownStore), 51), meta.LifeUnknown, livesOf(9)},
		{"a replaced disk that has fewer groups", nil, wrote(rowOf(1, 4, otherStore), 51), meta.LifeFirst, livesOf(9)},
		{
			"an older state that has all groups", livesOf(-1), wrote(rowOf(3, 4, ownStore), 7), meta.LifeUnknown,
			livesOf(-1, 9),
		},
		{
			"older metadata, of before a loss", livesOf(-1, -2), wrote(rowOf(1, 4, ownStore), 51), meta.LifePast,
			livesOf(-1, -2, 9),
		},
		{"itself, the answer was lost", livesOf(-1, 9), rowOf(9, 4, ownStore), meta.LifeCurrent, livesOf(-1, -9)},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.lives)
			got := judge(c.lives, ownStore, 50, c.row)
			if got != c.want {
				t.Errorf("it is %d, want %d", got, c.want)
			}
			next := begun(c.lives, ownStore, c.row, got, bootOf(9))
			if !slices.Equal(next, c.next) {
				t.Errorf("it keeps %v, want %v", next, c.next)
			}
			if !slices.Equal(before, c.lives) {
				t.Error("the lives that were given have changed")
			}
		})
	}
}

// However many lives there are, the last registered one stays, and so does the newest.
func TestLivesAreBounded(t *testing.T) {
	lives := livesOf(-1)
	for n := 2; n < 300; n++ {
		lives = begun(lives, ownStore, rowOf(1, 4, ownStore), meta.LifeCurrent, bootOf(n))
		if len(lives) != min(n, MaxLifeCount) || lives[0] != livesOf(-1)[0] || lives[len(lives)-1].Boot != bootOf(n) {
			t.Fatalf("after %d lives it keeps %d: %v", n, len(lives), lives)
		}
	}
	lives = registered(lives, bootOf(299))
	lives = begun(lives, ownStore, rowOf(299, 4, ownStore), meta.LifeCurrent, bootOf(300))
	if lives[0].Registered || len(lives) != MaxLifeCount {
		t.Errorf("a life before the last registered one stays: %v", lives[0])
	}
}

// A process is in the file before it registers. A crash of the machine before the row is written, and one behind it,
// leave a directory that is current; a copy of it and its original that register in turn know of each other.
func TestLivesSurviveACrash(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	f := openNode(t, disk, NewestLevel, true)
	if err := f.Raise(NewestLevel); err != nil {
		t.Fatal(err)
	}
	row := func(boot int) *meta.Node { return rowOf(boot, NewestLevel, f.StoreID()) }
	begin := func(f *NodeFile, was *meta.Node, boot int, want meta.Life) {
		t.Helper()
		if got := f.Life(was, 0); got != want {
			t.Errorf("process %d: the directory is %d, want %d", boot, got, want)
		}
		if err := f.Begin(was, 0, bootOf(boot)); err != nil {
			t.Fatal(err)
		}
	}
	begin(f, nil, 1, meta.LifeFirst)
	if err := f.Registered(bootOf(1)); err != nil {
		t.Fatal(err)
	}
	crash := func() *NodeFile { disk = disk.Crash(1); return openNode(t, disk, NewestLevel, true) }
	f = crash()
	begin(f, row(1), 2, meta.LifeCurrent)
	f = crash()
	begin(f, row(1), 3, meta.LifeCurrent) // 2 never registered
	f = crash()
	begin(f, row(3), 4, meta.LifeCurrent) // 3 did, and could not note it
	if err := f.Registered(bootOf(4)); err != nil {
		t.Fatal(err)
	}

	original, duplicate := openNode(t, disk.Crash(1), NewestLevel, true), openNode(t, disk.Crash(2), NewestLevel, true)
	begin(duplicate, row(4), 5, meta.LifeCurrent)
	begin(original, row(5), 6, meta.LifeUnknown)
	begin(duplicate, row(6), 7, meta.LifeUnknown)
	begin(original, row(7), 8, meta.LifeUnknown)
	if got := openNode(t, disk.Crash(1), NewestLevel, true).Life(row(3), 0); got != meta.LifePast {
		t.Errorf("the metadata went back, and the directory is %d", got)
	}
}

// Below LivesLevel the file has no lives. When the level is raised, the process that runs is in the file with it.
func TestLivesBeginWithTheirLevel(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	f := openNode(t, disk, NewestLevel, true)
	was := rowOf(1, LivesLevel-1, f.StoreID())
	for range 2 {
		if err := errors.Join(f.Raise(LivesLevel-1), f.Begin(was, 0, bootOf(2)), f.Registered(bootOf(2))); err != nil {
			t.Fatal(err)
		}
	}
	if again := openNode(t, disk, NewestLevel, true); again.node.Lives != nil || f.node.Lives != nil {
		t.Errorf("below its level the file has the lives %v", again.node.Lives)
	}
	if err := f.Raise(LivesLevel); err != nil {
		t.Fatal(err)
	}
	again := openNode(t, disk, NewestLevel, true)
	if want := livesOf(-1, -2); !slices.Equal(again.node.Lives, want) {
		t.Errorf("the raised directory has the lives %v, want %v", again.node.Lives, want)
	}
	if got := again.Life(rowOf(1, LivesLevel-1, f.StoreID()), 0); got != meta.LifePast {
		t.Errorf("it is %d", got)
	}
}

// A life that cannot be written is not begun: the process must not register.
func TestLifeThatCannotBeWritten(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	f := openNode(t, disk, NewestLevel, true)
	if err := f.Raise(NewestLevel); err != nil {
		t.Fatal(err)
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Name: NodePath + "*", Count: 1, Err: syscall.ENOSPC})
	if err := f.Begin(nil, 0, bootOf(1)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("it answers %v", err)
	}
	if f.lives != nil {
		t.Errorf("it has the lives %v", f.lives)
	}
	if err := f.Begin(nil, 0, bootOf(1)); err != nil {
		t.Fatal(fmt.Errorf("tried again: %w", err))
	}
	if got := openNode(t, disk, NewestLevel, true).node.Lives; !slices.Equal(got, livesOf(1)) {
		t.Errorf("the file has the lives %v", got)
	}
}

// Behind is what the lives tell before recovery, and a directory that never registered tells nothing.
func TestBehind(t *testing.T) {
	here, elsewhere := uuid.UUID{1}, uuid.UUID{2}
	known, other := uuid.UUID{3}, uuid.UUID{4}
	was, tried := []Life{{Boot: known, Registered: true}}, []Life{{Boot: known}}
	for _, c := range []struct {
		name  string
		lives []Life
		row   *meta.Node
		want  bool
	}{
		{"no row", was, nil, false},
		{"its own process", was, &meta.Node{Store: here, Boot: known, StoreLevel: LivesLevel}, false},
		{"its own process, which wrote as much", was, &meta.Node{Store: here, Boot: known, Logged: 9}, false},
		{"its own process, which wrote more", was, &meta.Node{Store: here, Boot: known, Logged: 10}, true},
		{"a process that it does not know", was, &meta.Node{Store: here, Boot: other, StoreLevel: LivesLevel}, true},
		{"a later directory of the node", was, &meta.Node{Store: elsewhere, Boot: other, StoreLevel: LivesLevel}, true},
		{"an earlier one, and this one is new", nil, &meta.Node{Store: elsewhere, Boot: other}, false},
		{"an earlier one, and this one has tried", tried, &meta.Node{Store: elsewhere, Boot: other}, false},
		{"it is from before lives", nil, &meta.Node{Store: here, Boot: other, StoreLevel: LivesLevel - 1}, false},
	} {
		if got := behind(c.lives, here, 9, c.row); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
