package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

// pages writes the manual pages, compressed, and the completions below the scratch directory, and returns where: files
// in man, bash, zsh and fish.
func (r *release) pages(ctx context.Context) (string, error) {
	raw, done := filepath.Join(r.scratch, "pages"), filepath.Join(r.scratch, "documents")
	// -trimpath: what is compiled does not depend on where the tree is, and is cached.
	if _, err := output(ctx, r.source, "go", "run", "-trimpath", "-buildvcs=false", "-tags", "manpages", "./cmd/engine",
		raw, fmt.Sprint(r.date.Unix()), r.version); err != nil {
		return "", err
	}
	overview, err := os.ReadFile("files/penstock.8.md")
	if err != nil {
		return "", err
	}
	title := fmt.Sprintf("%% \"PENSTOCK\" \"8\" %q %q \"Penstock\"\n", r.date.Format("Jan 2006"), "penstock "+r.version)
	if err := os.WriteFile(filepath.Join(raw, "penstock.8"), md2man.Render(append([]byte(title), overview...)),
		0o644); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(raw, "*.[158]"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(done, "man"), 0o755); err != nil {
		return "", err
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(done, "man", filepath.Base(path)+".gz"), compress(text), 0o644); err != nil {
			return "", err
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if err := os.Rename(filepath.Join(raw, shell), filepath.Join(done, shell)); err != nil {
			return "", err
		}
	}
	return done, nil
}

// compress returns text as gzip without a time and a name.
func compress(text []byte) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	_, _ = z.Write(text) // a bytes.Buffer takes everything
	_ = z.Close()
	return b.Bytes()
}
