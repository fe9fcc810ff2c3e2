//go:build race && (amd64 || arm64)

package lock

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// broken returns the text with which f panics.
func broken(f func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = r.(string)
		}
	}()
	f()
	return ""
}

func TestOrderIsChecked(t *testing.T) {
	type world struct {
		topic, other Mutex[Topic]
		engine       RWMutex[Catalog]
		partition    Mutex[Partition]
	}
	for name, c := range map[string]struct {
		do   func(w *world)
		want string
	}{
		"in order":            {func(w *world) { w.topic.Lock(); w.engine.RLock(); w.partition.Lock() }, ""},
		"one after the other": {func(w *world) { w.partition.Lock(); w.partition.Unlock(); w.topic.Lock() }, ""},
		"out of order":        {func(w *world) { w.partition.Lock(); w.topic.Lock() }, "Topic is taken"},
		"two of a class":      {func(w *world) { w.topic.Lock(); w.other.Lock() }, "Topic is taken while lock.Topic is held"},
		"a reader, too late":  {func(w *world) { w.partition.Lock(); w.engine.RLock() }, "Catalog is taken"},
		"behind a reader":     {func(w *world) { w.engine.RLock(); w.topic.Lock() }, "lock.Catalog is held"},
		"after a reader":      {func(w *world) { w.engine.RLock(); w.engine.RUnlock(); w.topic.Lock() }, ""},
		"tried, not waited":   {func(w *world) { w.partition.Lock(); w.topic.TryLock() }, ""},
		"behind a tried one":  {func(w *world) { w.engine.Lock(); w.partition.TryLock(); w.topic.Lock() }, "Topic is taken"},
		"of two goroutines":   {func(w *world) { w.partition.Lock(); elsewhere(w.topic.Lock) }, ""},
		"given back elsewhere": {func(w *world) {
			w.partition.Lock()
			elsewhere(w.partition.Unlock)
			w.topic.Lock()
		}, ""},
	} {
		var text string
		elsewhere(func() { text = broken(func() { c.do(new(world)) }) })
		if (text == "") != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

// elsewhere runs f on another goroutine and waits for it. The goroutine stays: the next one would take over its locks.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
		select {}
	}()
	<-done
}

// The check does not hide races: of two goroutines that each take a lock of their own, the detector sees that they
// write the same variable. The test runs itself in another process, which the detector ends.
func TestRacesAreSeen(t *testing.T) {
	const variable = "TEST_RACING"
	if os.Getenv(variable) != "" {
		race()
		return
	}
	again := exec.Command(os.Args[0], "-test.run", "^TestRacesAreSeen$")
	again.Env = append(os.Environ(), variable+"=1")
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "DATA RACE") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// race writes a variable on two goroutines, one after the other, each under a lock of its own.
func race() {
	var locks [2]Mutex[Topic]
	written := 0
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 100 * time.Millisecond)
			locks[i].Lock()
			defer locks[i].Unlock()
			written++
		})
	}
	wg.Wait()
}
