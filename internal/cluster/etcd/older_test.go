package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

func TestWeigh(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		older    string
		majority bool
		newer    []string
		want     verdict
	}{
		{"nobody answers", "", false, nil, votes},
		{"a majority knows nothing newer", "", true, []string{""}, votes},
		{"a majority knows something newer", "", true, []string{"x"}, anew},
		{"single members know nothing newer", "", false, []string{"", "", ""}, votes},
		{"one single member knows something newer", "", false, []string{"", "x", ""}, waits},
		{"one did, and nobody answers any more", "x", false, nil, waits},
		{"one did, and another one does not", "x", false, []string{""}, waits},
		{"one did, and a majority does not", "x", true, []string{""}, votes},
	} {
		if got, why := weigh(c.older, c.majority, c.newer...); got != c.want || (why == "x") != (got != votes) {
			t.Errorf("%s: %v %q", c.name, got, why)
		}
	}
}

// olderCluster makes a cluster of three members, and puts back the directory of the second one to a moment before the
// value "later", while it is stopped. The options are for its next start.
func olderCluster(t *testing.T) (*cluster, MemberOptions) {
	t.Helper()
	c := startCluster(t)
	s := c.dial(Options{}, 0)
	put(t, s, "k/a", "before")
	c.stop(1)
	o := c.options(1)
	old := o.Dir + ".old"
	if err := os.CopyFS(old, os.DirFS(o.Dir)); err != nil {
		t.Fatal(err)
	}
	c.start(1)
	c.ready(1)
	put(t, s, "k/a", "later")
	put(t, c.dial(Options{}, 1), "k/b", "later")
	c.stop(1)
	if err := errors.Join(os.RemoveAll(o.Dir), os.Rename(old, o.Dir)); err != nil {
		t.Fatal(err)
	}
	o.Prefix, o.Older = "k/", knowsLater
	return c, o
}

func knowsLater(s Testimony) (string, int64) {
	for _, e := range s.Rows {
		if e.Key == "k/a" && string(e.Value) == "later" {
			return fmt.Sprintf("%s has revision %d", e.Key, e.ModRevision), e.ModRevision
		}
	}
	return "", 0
}

func (c *cluster) startWith(i int, o MemberOptions) {
	c.t.Helper()
	m, err := Start(o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.members[i] = m
}

// A member of an older directory does not vote under its old identity, and its old files are kept.
func TestOlderMemberIsAddedAnew(t *testing.T) {
	t.Parallel()
	c, o := olderCluster(t)
	before := identity(t, c, 1)
	c.startWith(1, o)
	c.ready(1)
	if after := identity(t, c, 1); after == before {
		t.Errorf("it votes under its old identity %x", after)
	}
	kept := c.members[1].Kept()
	if filepath.Dir(kept) != o.Dir || !strings.HasPrefix(filepath.Base(kept), olderName) {
		t.Fatalf("its old files are in %q", kept)
	}
	if _, err := os.Stat(filepath.Join(kept, "wal")); err != nil {
		t.Error(err)
	}
	if log := c.log.String(); strings.Count(log, "is an older state of itself") != 1 || !strings.Contains(log, kept) {
		t.Error("the log does not say it once, with the place of the files")
	}
	if got := get(t, c.dial(Options{}, 1), "k/b"); got != "later" {
		t.Errorf("it serves %q", got)
	}
	now := identity(t, c, 1)
	c.stop(1)
	c.startWith(1, o) // before the node has registered again
	c.ready(1)
	if again := identity(t, c, 1); again != now || c.members[1].Kept() != "" {
		t.Errorf("at the next start %x becomes %x, and %q is kept", now, again, c.members[1].Kept())
	}
	c.stop(2) // now the majority needs the new member
	put(t, c.dial(Options{}, 0), "more", "yes")
}

// Without a majority of the others it waits for one, and says what to do when nobody wants to wait any longer.
func TestOlderMemberWaits(t *testing.T) {
	t.Parallel()
	c, o := olderCluster(t)
	c.stop(2)
	c.startWith(1, o)
	err := untilItSays(t, "is an older state of itself: k/a has revision", c.members[1].Ready)
	if !errors.Is(err, ErrDirectory) {
		t.Fatalf("it is ready, or does not say why not: %v", err)
	}
	if _, err := admin(t, c, 0).Get(within(t, time.Second), "k/a"); err == nil {
		t.Error("with it the other member has a majority")
	}
	c.start(2)
	c.ready(2, 1)
	if c.members[1].Kept() == "" {
		t.Error("it votes from its old files")
	}
}

// A current member starts from its log, with the others or alone with one that does not know more.
func TestCurrentMemberIsAsked(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	before := identity(t, c, 1)
	c.stop(1, 2)
	o := c.options(1)
	asked := make(chan Testimony, 100)
	o.Older = func(s Testimony) (string, int64) { asked <- s; return "", 0 }
	c.startWith(1, o)
	c.ready(1)
	for tries := 10; len(asked) == 0; tries-- { // one that does not answer in a second is not waited for
		if tries == 0 {
			t.Fatal("it asks nobody")
		}
		c.stop(1)
		c.startWith(1, o)
		c.ready(1)
	}
	if s := <-asked; s.Majority || s.Revision == 0 {
		t.Errorf("one member of three says %+v", s)
	}
	if after := identity(t, c, 1); after != before || c.members[1].Kept() != "" {
		t.Errorf("%x became %x, and %q is kept", before, after, c.members[1].Kept())
	}
}

// A member that listens and does not serve yet may need this one's vote: it is not waited for.
func TestMemberThatDoesNotServe(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.stop(0, 1, 2)
	c.start(0) // alone it hears of no leader, so it does not serve
	m := &Member{ctx: t.Context(), o: c.options(1)}
	v := m.o.Voters[0]
	for ctx := within(t, enough); ; {
		if conn, err := net.Dial("tcp", v.Client); err == nil {
			_ = conn.Close()
			break
		}
		if !pause(ctx, 10*time.Millisecond) {
			t.Fatal("it does not listen")
		}
	}
	client, err := m.clientOf(v)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if serves(t.Context(), client, serveAtLeast) {
		t.Error("it serves clients alone")
	}
	c.start(1)
	c.ready(0)
	if !serves(t.Context(), client, time.Minute) {
		t.Error("it does not serve clients with another one")
	}
}

// If only the data directory is older, the member, which has the row that tells it, votes.
func TestOnlyDataIsOlder(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	put(t, c.dial(Options{}, 0), "k/a", "later")
	put(t, c.dial(Options{}, 1), "k/b", "later") // the member has it
	before := identity(t, c, 1)
	c.stop(1)
	o := c.options(1)
	o.Prefix, o.Older = "k/", knowsLater
	c.startWith(1, o)
	c.ready(1)
	if after := identity(t, c, 1); after != before || c.members[1].Kept() != "" {
		t.Errorf("%x became %x, and %q is kept", before, after, c.members[1].Kept())
	}
}

// What etcd panics with becomes one sentence.
func TestLastWords(t *testing.T) {
	t.Parallel()
	var said error
	o := MemberOptions{Dir: "/data/etcd", Voters: make([]Voter, 3), Fatal: func(err error) { said = err; panic("ends") }}
	words := func(o MemberOptions, say func(*zap.Logger)) string {
		said = nil
		log := serverLogger(slog.New(slog.DiscardHandler), func() bool { return false }, lastHook{o: &o})
		o.Log = slog.New(slog.DiscardHandler)
		func() {
			defer func() { _ = recover() }()
			say(log)
		}()
		if said == nil {
			t.Fatal("the process does not end")
		}
		return said.Error()
	}
	o.Log = slog.New(slog.DiscardHandler)
	const raft = "tocommit(9) is out of range [lastIndex(7)]. Was the raft log corrupted, truncated, or lost?"
	text := words(o, func(log *zap.Logger) { log.Sugar().Panicf("%s", raft) })
	for _, want := range []string{"/data/etcd", raft, "older state", "messages are unharmed", "is then added anew"} {
		if !strings.Contains(text, want) || !errors.Is(said, ErrDirectory) {
			t.Errorf("a panic does not say %q: %s", want, text)
		}
	}
	o.Voters = o.Voters[:1]
	if text = words(o, func(log *zap.Logger) { log.Panic(raft) }); strings.Contains(text, "added anew") {
		t.Errorf("the only member says %s", text)
	}
}
