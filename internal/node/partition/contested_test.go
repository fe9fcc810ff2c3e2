package partition

import (
	"errors"
	"testing"

	"penstock/internal/meta"
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
