package events

import (
	"testing"

	"penstock/internal/node/delivery"
)

// heard is a Subscriber that counts its calls.
type heard struct{ posts, wakes, commits, resumes int }

func (h *heard) Post(*delivery.Post) { h.posts++ }
func (h *heard) Wake()               { h.wakes++ }
func (h *heard) Committed()          { h.commits++ }
func (h *heard) Resume(uint32)       { h.resumes++ }

// Each subscriber hears of everything once, from when it is added until it is removed.
func TestSubscribers(t *testing.T) {
	var ss Subscribers
	a, b := new(heard), new(heard)
	ss.Post(new(delivery.Post))
	if ss.Any() || ss.Has(a) {
		t.Error("nobody was added")
	}
	for range 2 {
		ss.Add(a)
	}
	ss.Post(new(delivery.Post))
	ss.Add(b)
	ss.Committed()
	ss.Resume(3)
	ss.Remove(a)
	ss.Post(new(delivery.Post))
	if *a != (heard{1, 2, 1, 1}) || *b != (heard{1, 2, 1, 1}) {
		t.Errorf("one heard %+v, the other %+v", a, b)
	}
	if ss.Remove(b); ss.Any() || ss.Has(b) {
		t.Error("all were removed")
	}
}
