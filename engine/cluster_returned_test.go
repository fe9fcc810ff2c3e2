package engine_test

import (
	"fmt"
	"testing"
	"time"

	"penstock/engine"
	"penstock/segment/aio/faultaio"
)

// A copy that was not needed for a while and is needed again, in the same process, holds durably what its commit log has made durable, and not all that
// was appended: while its disk hangs it acknowledges nothing more, and what the disk has done meanwhile counts.
func TestClusterReturnedCopyHoldsWhatIsDurable(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	l := tr.leader("t", 0)
	tr.equal("t", 0)
	back := tr.others(l)[0]
	before := engine.HoldsOf(back.e, "t", 0)
	back.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	t.Cleanup(func() { // before the trio ends
		back.disk.ClearRules()
		back.disk.ReleaseHeld()
	})
	done, err := submit(tr.topic(l, "t"), time.Time{}, "message")
	if err != nil {
		t.Fatal(err)
	}
	tr.eventually("it has the message, not durably", func() bool { return engine.HoldsOf(back.e, "t", 0).End > before.End })
	for round := range 3 {
		if err := engine.ReopenCopy(back.e, "t", 0); err != nil {
			t.Fatal(err)
		}
		if h := engine.HoldsOf(back.e, "t", 0); h.Durable != before.Durable || h.End != before.End+1 {
			t.Errorf("round %d: it was %+v before the message, it says %+v", round, before, h)
		}
	}
	select {
	case r := <-done:
		t.Errorf("answered although %s did not flush it: %v", back.name, r)
	case <-time.After(30 * time.Millisecond):
	}
	engine.RetireCopy(back.e, "t", 0) // its disk goes on while it is not needed
	back.disk.ClearRules()
	back.disk.ReleaseHeld()
	tr.eventually("the message is durable", func() bool { return engine.HoldsOf(back.e, "t", 0).Durable == before.End+1 })
	if err := engine.ReopenCopy(back.e, "t", 0); err != nil {
		t.Fatal(err)
	}
	if h := engine.HoldsOf(back.e, "t", 0); h.Durable != before.End+1 {
		t.Errorf("what became durable while it was away does not count: %+v", h)
	}
	if r := answer(t, done); r.err != nil {
		t.Error(fmt.Errorf("the answer: %w", r.err))
	}
	tr.equal("t", 0)
}
