//go:build failpoint

package failpoint

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// On says whether this program was built with failpoints.
const On = true

// ErrHit is what Hit returns when the test lets it fail.
var ErrHit = errors.New("failpoint: a test lets this fail")

// chosen is the parsed TEST_FAILPOINT. After init only hits changes.
var chosen struct {
	name, action string
	sleep        time.Duration
	at           uint64
	hits         atomic.Uint64
}

func init() {
	if text := os.Getenv(Variable); text != "" {
		if err := choose(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
}

func choose(text string) (err error) {
	name, what, ok := strings.Cut(text, "=")
	action, at, counted := strings.Cut(what, "@")
	if !ok || !counted || !slices.Contains(Names, name) {
		return fmt.Errorf("%s=%q: want NAME=ACTION@N with a name of %q", Variable, text, Names)
	}
	if chosen.at, err = strconv.ParseUint(at, 10, 64); err != nil {
		return fmt.Errorf("%s=%q: %w", Variable, text, err)
	}
	action, arg, _ := strings.Cut(action, ":")
	switch action {
	case "kill", "error":
	case "sleep":
		if chosen.sleep, err = time.ParseDuration(arg); err != nil {
			return fmt.Errorf("%s=%q: %w", Variable, text, err)
		}
	default:
		return fmt.Errorf("%s=%q: there is no action %q", Variable, text, action)
	}
	chosen.name, chosen.action = name, action
	return nil
}

// Pass marks a place where nothing can fail. Any goroutine may call it.
func Pass(name string) { _ = Hit(name) }

// Hit marks a place of the write path that can fail. Any goroutine may call it, with whatever locks it holds there in
// the product.
func Hit(name string) error {
	if name != chosen.name {
		if !slices.Contains(Names, name) {
			panic("BUG: there is no failpoint " + name)
		}
		return nil
	}
	n := chosen.hits.Add(1)
	if n < chosen.at {
		return nil
	}
	if n == chosen.at {
		fmt.Fprintf(os.Stderr, "failpoint %s: %s at hit %d\n", name, chosen.action, n)
	}
	switch chosen.action {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal arrives
	case "sleep":
		if n == chosen.at {
			time.Sleep(chosen.sleep)
		}
	case "error":
		return ErrHit
	}
	return nil
}
