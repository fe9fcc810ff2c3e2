package fold

import (
	"errors"
	"strings"
	"testing"

	"penstock/batch"
)

// A name is its owner's, for opening it and for its batches, by name and by id. Who has to prove nothing uses all
// names, and what such a client has opened is everybody's.
func TestProducerOwners(t *testing.T) {
	a, b := "\x01"+strings.Repeat("a", OwnerBytes-1), "\x01"+strings.Repeat("b", OwnerBytes-1)
	c := new(Cursors)
	open := func(owner, name string) ProducerOpening {
		t.Helper()
		o, err := take(t, c, owner+name, batch.NewTenure(1e12, 5), true, 400)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	own, free := open(a, "own"), open("", "free")
	for _, x := range []struct {
		owner, name string
		of          ProducerOpening
		may         bool
	}{
		{a, "own", own, true},
		{b, "own", own, false},
		{"", "own", own, true},
		{a, "free", free, true},
		{b, "free", free, true},
		{"", "free", free, true},
	} {
		name := x.owner + x.name
		if c.KnowsProducer(name) != x.may || c.IsForeignProducer(name) == x.may ||
			c.OwnsProducer(x.of.ID, x.owner) != x.may {
			t.Errorf("%q for %q: known %v, foreign %v, owned %v", x.name, x.owner, c.KnowsProducer(name),
				c.IsForeignProducer(name), c.OwnsProducer(x.of.ID, x.owner))
		}
		h := batchOf(0, 0, 0, 1)
		_, _, err := c.JudgeNamed([]byte(name), x.of.Tenure, h)
		if x.may && (err != nil || h.ProducerID != x.of.ID) || !x.may && !errors.Is(err, ErrProducerOwner) {
			t.Errorf("a batch of %q for %q: %v, producer %d", x.name, x.owner, err, h.ProducerID)
		}
		if id, known := c.namedProducer([]byte(name)); known != x.may || known && id != x.of.ID {
			t.Errorf("%q for %q is producer %d (%v)", x.name, x.owner, id, known)
		}
	}
	if c.IsForeignProducer("") || c.IsForeignProducer(a+"new") || !c.OwnsProducer(99, a) {
		t.Error("what nobody has opened is nobody's")
	}
	if again := open(a, "own"); again.ID != own.ID || again.Epoch != own.Epoch+1 {
		t.Errorf("opened again: %+v, was %+v", again, own)
	}
	if again := open(b, "free"); again.ID != free.ID {
		t.Errorf("opened by another: %+v, was %+v", again, free)
	}
	copied, _, err := DecodeCursors(c.Append(nil))
	if err != nil || !copied.IsForeignProducer(b+"own") || !copied.KnowsProducer(a+"own") {
		t.Errorf("a copy of the fold has other owners: %v", err)
	}
	foreign := []byte(a + "own")
	if n := testing.AllocsPerRun(100, func() { c.namedProducer(foreign) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
