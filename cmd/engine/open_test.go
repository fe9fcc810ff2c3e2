package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// penstock open prints where the console is, and tells the desktop where there is one.
func TestOpen(t *testing.T) {
	n := startNode(t, t.TempDir())
	bin := t.TempDir()
	told := filepath.Join(bin, "told")
	must(t, os.WriteFile(filepath.Join(bin, "xdg-open"), []byte("#!/bin/sh\necho $1 > "+told+"\n"), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("PENSTOCK_SERVER", n.http)
	t.Setenv("DISPLAY", "")
	t.Setenv("WAYLAND_DISPLAY", "")
	console := "http://" + n.http + "/console/\n"
	check := func(opens bool, args ...string) {
		t.Helper()
		if got := steer(t, append([]string{"open"}, args...)...); got != console {
			t.Errorf("open %v prints %q, wanted %q", args, got, console)
		}
		text, err := os.ReadFile(told)
		if opens != (err == nil) || opens && string(text) != console {
			t.Errorf("open %v told the desktop %q, %v", args, text, err)
		}
	}
	check(false)
	t.Setenv("DISPLAY", ":0")
	check(false, "--print")
	check(true)
	must(t, os.WriteFile(filepath.Join(bin, "xdg-open"), []byte("#!/bin/sh\nexit 3\n"), 0o700))
	o := execute(t, "open")
	o.check(t, cli.ExitOther, "the console was not opened")
	if o.stdout != console {
		t.Errorf("open prints %q", o.stdout)
	}
	if o := execute(t, "open", "--http-address", "127.0.0.1:1"); o.code == 0 || strings.Contains(o.stdout, "console") {
		t.Errorf("no node is there: %+v", o)
	}
}
