package scrub

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/node/platform"
)

// A new interval holds within a minute, during a pause that has begun; with 0, nothing begins.
func TestIntervalChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		s := New(Env{Host: platform.NewMachine(), Stop: stop})
		began := time.Now()
		next := make(chan bool)
		wait := func(since time.Time) { next <- s.await(since, errorPause, time.Hour) }
		awaits := func(want time.Duration) {
			t.Helper()
			<-next
			if took := time.Since(began); took < want || took > want+lookEvery {
				t.Errorf("the round begins after %v, want %v", took, want)
			}
		}
		go wait(began)
		time.Sleep(3 * time.Hour)
		select {
		case <-next:
			t.Fatal("a round begins although the scrub is off")
		default:
		}
		s.Every(30 * time.Minute)
		awaits(3 * time.Hour)
		began = time.Now()
		go wait(began)
		time.Sleep(10 * time.Minute)
		s.Every(100 * time.Hour)
		awaits(time.Hour) // at most
		began = time.Now()
		s.Every(time.Nanosecond)
		go wait(began)
		awaits(errorPause)
		s.Every(time.Hour)
		go wait(time.Now())
		close(stop)
		if <-next {
			t.Error("a round begins although the engine closes")
		}
	})
}
