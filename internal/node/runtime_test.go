package node_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Code that reads a clock, starts a goroutine or draws an id must ask the host, or the simulation of whole nodes would
// not see it. No simulation reaches the places where the exceptions wait: a put that finds no room
// (Options.AdmitTimeout), and goroutines of Host.Alongside, which a simulation has already run.
func TestOnlyTheHostIsAsked(t *testing.T) {
	doors := regexp.MustCompile(`time\.(Now|Since|After|NewTimer|NewTicker|Sleep)\(|\bgo (func|[a-z]+\.)|` +
		`context\.WithTimeout\(|uuid\.New(String)?\(|\bwg\.(Go|Wait)\(`)
	allowed := []string{
		"inbox/inbox.go: time.NewTimer(", "inbox/inbox.go: time.NewTicker(", "flush/flusher.go: wg.Wait(",
		"inbox/inflate.go: context.WithTimeout(",
		// It is not used in a simulation: the program's logger may do anything.
		"base/log_queue.go: go q.", "base/log_queue.go: time.NewTimer(", "base/log_queue.go: time.Now(",
	}
	files, err := filepath.Glob("*.go")
	rooms, roomsErr := filepath.Glob("*/*.go")
	if err != nil || roomsErr != nil {
		t.Fatal(err, roomsErr)
	}
	seen := 0
	for _, name := range slices.Concat(files, rooms) {
		if strings.HasSuffix(name, "_test.go") || filepath.Dir(name) == "platform" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		for i, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, "//")
			for _, door := range doors.FindAllString(code, -1) {
				if !slices.Contains(allowed, name+": "+door) {
					t.Errorf("%s:%d: %s does not ask the host", name, i+1, door)
				}
			}
		}
	}
	if seen < 20 {
		t.Fatalf("only %d files were looked at", seen)
	}
}
