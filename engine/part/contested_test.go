package part

import (
	"errors"
	"testing"

	"penstock/engine/meta"
	"penstock/replicate"
)

// The store must hear which copies hold what their leader lacks: what is called damaged is what an operator may wipe.
func TestContestedIsNotDamaged(t *testing.T) {
	r := bareReplica()
	for want, err := range map[meta.CopyState]error{
		meta.CopyWhole: nil, meta.CopyDamaged: replicate.ErrCorrupt, meta.CopyContested: replicate.ErrContested,
	} {
		if r.damaged = err; r.copyState() != want {
			t.Errorf("%v: copy %d, want %d", err, r.copyState(), want)
		}
		if r.damaged = errors.Join(errors.New("as well"), err); err != nil && r.copyState() != want {
			t.Errorf("%v: copy %d, want %d", r.damaged, r.copyState(), want)
		}
	}
}

// A copy that an earlier process found contested is kept whole when it begins anew: the row remembers.
func TestContestedIsRemembered(t *testing.T) {
	r := bareReplica()
	row := &meta.Partition{State: replicate.State{Replicas: []replicate.NodeID{r.node.Self.ID}}}
	if r.run(func() { r.correctDamaged(row) }); r.wasContested.Load() {
		t.Error("nobody has contested it")
	}
	row.Damaged = []replicate.Member{r.node.member()}
	row.Contested = row.Damaged
	r.damaged = replicate.ErrContested // so that nothing is to be corrected in the row
	if r.run(func() { r.correctDamaged(row) }); !r.wasContested.Load() {
		t.Error("that it was contested is forgotten")
	}
}
