package engine_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Whatever reads a clock, starts something beside itself or draws an id goes through runtime.go, or the simulation of whole nodes would not
// see it. The exceptions are the loops that a Manual does in its own way.
func TestRuntimeHasAllDoors(t *testing.T) {
	doors := regexp.MustCompile(`time\.(Now|Since|After|NewTimer|NewTicker|Sleep)\(|\bgo (func|[a-z]+\.)|context\.WithTimeout\(|uuid\.New(String)?\(|\bwg\.(Go|Wait)\(`)
	allowed := []string{
		"channel.go: time.NewTimer(", "confirm.go: time.NewTimer(", "flusher.go: time.NewTicker(", "partition.go: time.NewTimer(",
		"partition.go: time.NewTicker(", "engine.go: go func", "flusher.go: wg.Wait(",
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range files {
		if name == "runtime.go" || strings.HasSuffix(name, "_test.go") {
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
					t.Errorf("%s:%d: %s does not go through runtime.go", name, i+1, door)
				}
			}
		}
	}
	if seen < 20 {
		t.Fatalf("only %d files were looked at", seen)
	}
}
