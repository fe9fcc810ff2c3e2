package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// release is what the files of one version are made from.
type release struct {
	version string    // 1.2.3, or 1.2.3-rc.1
	commit  string    // of the source; " (modified)" follows if the work tree differs from it
	date    time.Time // of all files
	source  string    // the top of the source tree
	out     string    // the directory of what is made
	scratch string    // a directory for what packages contain; removed at the end
}

// validVersion is a semantic version without metadata: those of deb and rpm cannot have any.
var validVersion = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9a-z]+(\.[0-9a-z]+)*)?$`)

func main() {
	version := flag.String("version", "", "version; empty means that of cmd/engine/version.go")
	out := flag.String("out", "../dist", "directory for the packages, which replace those of an earlier run")
	architectures := flag.String("arch", "amd64,arm64", "architectures, in Go's words")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *version, *out, strings.Split(*architectures, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, version, out string, architectures []string) error {
	syscall.Umask(0o022) // equal bytes for everybody: files keep their modes in the packages
	source, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "penstock-packaging")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	r := &release{version: version, source: source, out: out, scratch: scratch}
	if err := r.identify(ctx); err != nil {
		return err
	}
	if err := r.make(ctx, architectures); err != nil {
		return err
	}
	made, err := os.ReadFile(filepath.Join(out, sumsName))
	fmt.Print(string(made))
	return err
}

// identify finds out version, commit and date, unless the caller has said them.
func (r *release) identify(ctx context.Context) error {
	if r.version == "" {
		var err error
		if r.version, err = sourceVersion(r.source); err != nil {
			return err
		}
	}
	if !validVersion.MatchString(r.version) {
		return fmt.Errorf("%q is not a version such as 1.2.3 or 1.2.3-rc.1", r.version)
	}
	commit, err := output(ctx, r.source, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	changed, err := output(ctx, r.source, "git", "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return err
	}
	if r.commit = commit; changed != "" {
		r.commit += " (modified)"
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if epoch, err = output(ctx, r.source, "git", "log", "-1", "--format=%ct"); err != nil {
			return err
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("the date of the source, SOURCE_DATE_EPOCH: %w", err)
	}
	r.date = time.Unix(seconds, 0).UTC()
	return nil
}

var versionLine = regexp.MustCompile(`(?m)^\tversion += "([^"]+)"$`)

// sourceVersion returns the version that the source tree says it is.
func sourceVersion(source string) (string, error) {
	text, err := os.ReadFile(filepath.Join(source, "cmd/engine/version.go"))
	if err != nil {
		return "", err
	}
	m := versionLine.FindSubmatch(text)
	if m == nil {
		return "", errors.New("cmd/engine/version.go does not say a version")
	}
	return string(m[1]), nil
}

// output runs a program in a directory and returns what it prints, without the last line break. Its errors are shown.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
