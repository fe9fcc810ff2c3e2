package datadir

import (
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/tests/support/faultaio"
)

// What was written is read again. A damaged file says nothing, and is replaced by the next write.
func TestSeen(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	if s, err := ReadSeen(disk); err != nil || s != (meta.Seen{}) {
		t.Errorf("without a file: %+v, %v", s, err)
	}
	want := meta.Seen{Cluster: uuid.UUID{1}, Generation: 2, Revision: 3}
	if err := WriteSeen(disk, want); err != nil {
		t.Fatal(err)
	}
	disk = disk.Crash(1)
	if s, err := ReadSeen(disk); err != nil || s != want {
		t.Errorf("it reads %+v, %v", s, err)
	}
	if !disk.Corrupt(SeenFile, []byte{'9'}, 20) {
		t.Fatal("nothing was damaged")
	}
	if s, err := ReadSeen(disk); err == nil || s != (meta.Seen{}) {
		t.Errorf("damaged: %+v, %v", s, err)
	}
}

// A state is of a later moment by the generation of the metadata, and then by its revision; those of other clusters,
// and of none, have no order.
func TestSeenAfter(t *testing.T) {
	one, other := uuid.UUID{1}, uuid.UUID{2}
	seen := func(cluster uuid.UUID, generation uint64, revision int64) meta.Seen {
		return meta.Seen{Cluster: cluster, Generation: generation, Revision: revision}
	}
	for _, c := range []struct {
		a, b  meta.Seen
		after bool
	}{
		{seen(one, 0, 5), seen(one, 0, 4), true},
		{seen(one, 0, 5), seen(one, 0, 5), false},
		{seen(one, 1, 1), seen(one, 0, 5), true},
		{seen(one, 0, 5), seen(one, 1, 1), false},
		{seen(one, 0, 5), seen(other, 0, 4), false},
		{seen(uuid.Nil, 0, 5), seen(uuid.Nil, 0, 4), false},
	} {
		if got := c.a.After(c.b); got != c.after {
			t.Errorf("%v after %v: %v", c.a, c.b, got)
		}
	}
}
