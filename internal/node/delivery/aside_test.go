package delivery_test

import (
	"testing"

	"penstock/internal/node/delivery"
)

func TestAside(t *testing.T) {
	var a delivery.Aside
	now, pauses := int64(1e18), []int64(nil)
	for range 14 {
		a.Fail(7, "too big", now)
		pause := int64(0)
		for a.Waits(7, now+pause) {
			pause += 50e6
		}
		now += pause
		pauses = append(pauses, pause/1e6)
	}
	if pauses[0] != 50 || pauses[1] != 100 || pauses[9] != 25_600 || pauses[10] != 30_000 || pauses[13] != 30_000 {
		t.Errorf("pauses in ms: %v", pauses)
	}
	if a.Waits(8, now) {
		t.Error("one that was never tried waits")
	}
	if n, why := a.Count(5); n != 1 || why != "too big" {
		t.Errorf("%d aside, %q", n, why)
	}
	a.FailAll("no topic")
	if n, why := a.Count(5); n != 5 || why != "no topic" {
		t.Errorf("%d aside, %q", n, why)
	}
	a.FailAll("")
	a.Forget(7)
	if n, why := a.Count(5); n != 0 || why != "" {
		t.Errorf("after it was moved: %d aside, %q", n, why)
	}
}
