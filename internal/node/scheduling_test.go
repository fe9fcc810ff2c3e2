package node

import (
	"strings"
	"testing"
	"time"
)

// Being woken late counts from 50 ms on, and makes one line in ten seconds if it is long or often.
func TestScheduling(t *testing.T) {
	var s scheduling
	began := time.Unix(1000, 0)
	ms := time.Millisecond
	for i, x := range []struct {
		at, late, counts time.Duration
		line             string
	}{
		{0, 0, 0, ""},
		{250 * ms, 49 * ms, 0, ""},
		{500 * ms, 80 * ms, 80 * ms, ""},
		{time.Second, 600 * ms, 600 * ms, "was not scheduled for 600 ms, and for 680 ms in all"},
		{2 * time.Second, 5 * time.Second, 5 * time.Second, ""}, // a line has just been written
		{12 * time.Second, 90 * ms, 90 * ms, "for 5000 ms, and for 5090 ms in all"},
		{40 * time.Second, 400 * ms, 400 * ms, ""},
		{45 * time.Second, 400 * ms, 400 * ms, ""},
		{51 * time.Second, 400 * ms, 400 * ms, ""}, // what is older than ten seconds is forgotten
		{52 * time.Second, 400 * ms, 400 * ms, ""},
		{53 * time.Second, 400 * ms, 400 * ms, "for 400 ms, and for 1200 ms in all"},
	} {
		counts, line := s.woke(x.late, began.Add(x.at))
		if counts != x.counts || (line == "") != (x.line == "") || !strings.Contains(line, x.line) {
			t.Errorf("step %d: %v, %q", i, counts, line)
		}
	}
	if now := began.Add(60 * time.Second); !s.short(now) || s.short(now.Add(10*time.Second)) {
		t.Error("the shortage is forgotten too early or too late")
	}
	if got := s.where(began.Add(60*time.Second), "the disk"); !strings.Contains(got, "processor") {
		t.Error(got)
	}
	if got := new(scheduling).where(began, "the disk"); got != "the disk" {
		t.Error(got)
	}
}
