package clientotel

import (
	"fmt"
	"testing"
)

// However many channels a program visits, the attributes of few are kept, and those of the last are right.
func TestPlacesAreBounded(t *testing.T) {
	tel, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxPlaces {
		channel := fmt.Sprint("c", i)
		set := tel.about(place{"t", channel, 3})
		if again := tel.about(place{"t", channel, 3}); !set.Equals(&again) {
			t.Fatalf("%v and %v are of one place", set, again)
		}
		if len(tel.places) > maxPlaces {
			t.Fatalf("%d places are kept", len(tel.places))
		}
	}
}
