package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"penstock/internal/cluster/kv"
)

func seedEntries(count int) (all []kv.Op) {
	for i := range count {
		all = append(all, kv.Op{Key: fmt.Sprintf("k/%04d", i), Value: fmt.Append(nil, "v", i)})
	}
	return all
}

// A member that was seeded begins alone, and the other voters join it with empty directories.
func TestSeededMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	o := c.options(1)
	entries := seedEntries(250) // three transactions
	if err := Seed(within(t, enough), o, entries); err != nil {
		t.Fatal(err)
	}
	if err := Seed(within(t, enough), o, entries[:1]); err != nil { // the caller crashed before it could note it
		t.Fatal(err)
	}
	if err := Seeded(o.Dir); err != nil {
		t.Fatal(err)
	}
	if err := Seed(within(t, enough), o, entries); !errors.Is(err, ErrSeeded) {
		t.Fatalf("a directory in use: %v", err)
	}
	c.start(1, 0, 2)
	c.ready(0, 1, 2)
	s := c.dial(Options{}, 0, 1, 2)
	all, _, err := s.List(within(t, enough), "k/")
	if err != nil || len(all) != len(entries) {
		t.Fatalf("%d of %d entries (%v)", len(all), len(entries), err)
	}
	for i := range all {
		if all[i].Key != entries[i].Key || string(all[i].Value) != string(entries[i].Value) {
			t.Fatalf("entry %d is %s=%s", i, all[i].Key, all[i].Value)
		}
	}
	c.stop(1) // the other two have a majority
	put(t, c.dial(Options{}, 0, 2), "later", "yes")
}

// A crash at any moment of Seed leaves a directory without a member, and the next Seed begins anew.
func TestSeedIsInterrupted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	o := c.options(0)
	if err := os.MkdirAll(filepath.Join(o.Dir, seedingDir, memberDir, "wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(o.Dir, seedingDir, memberDir, "wal", "0.wal")
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if has, err := hasLog(o.Dir); err != nil || has {
		t.Fatal("what is half made counts as a member")
	}
	err := Seed(within(t, enough), o, seedEntries(3))
	if has, _ := hasLog(o.Dir); err != nil || !has {
		t.Fatal(err)
	}
}

// The metadata of a stopped member can be read without the others, and its directory stays as it is.
func TestReadStopped(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	s := c.dial(Options{}, 0, 1, 2)
	for i := range 20 {
		put(t, s, fmt.Sprintf("a/%02d", i), "v")
	}
	revision := put(t, s, "b", "v")
	c.stop(0, 1, 2)
	scratch := filepath.Join(t.TempDir(), "scratch")
	highest := int64(0)
	for i := range 3 {
		all, at, err := ReadStopped(within(t, enough), c.options(i).Dir, scratch, "a/")
		if err != nil || len(all) < 3 || all[2].Key != "a/02" || string(all[2].Value) != "v" {
			t.Fatalf("%d entries, %v", len(all), err)
		}
		if at >= revision && len(all) != 20 { // a member that lags may have fewer
			t.Errorf("%d entries at revision %d", len(all), at)
		}
		highest = max(highest, at)
		if _, err := os.Stat(scratch); !errors.Is(err, fs.ErrNotExist) {
			t.Error("the copy is left")
		}
	}
	if highest < revision {
		t.Errorf("the newest member has revision %d of %d", highest, revision)
	}
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	if get(t, c.dial(Options{}, 0, 1, 2), "b") != "v" {
		t.Error("the cluster does not go on")
	}
}

// The second member of a cluster was added, and died before it had a log. Without it there is no majority any more, and
// it finds its place all the same.
func TestSecondMemberWasAdded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	if err := Seed(within(t, enough), c.options(0), seedEntries(1)); err != nil {
		t.Fatal(err)
	}
	c.start(0)
	c.ready(0)
	if _, err := admin(t, c, 0).MemberAdd(within(t, enough), []string{"http://" + c.voters[2].Peer}); err != nil {
		t.Fatal(err)
	}
	c.start(2, 1)
	c.ready(2, 1)
	if get(t, c.dial(Options{}, 1), "k/0000") != "v0" {
		t.Error("the entry is missing")
	}
}
