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

// pages writes the manual pages, compressed, and the completions: files in pages/man, pages/bash, pages/zsh and
// pages/fish below the directory of what was built.
func (r *release) pages(ctx context.Context) error {
	pages := filepath.Join(r.scratch, "pages")
	// -trimpath: what is compiled does not depend on where the tree is, and is cached.
	if _, err := output(ctx, r.source, "go", "run", "-trimpath", "-buildvcs=false", "-tags", "manpages", "./cmd/engine",
		pages, fmt.Sprint(r.date.Unix()), r.version); err != nil {
		return err
	}
	overview, err := os.ReadFile("files/penstock.8.md")
	if err != nil {
		return err
	}
	title := fmt.Sprintf("%% \"PENSTOCK\" \"8\" %q %q \"Penstock\"\n", r.date.Format("Jan 2006"), "penstock "+r.version)
	if err := r.keep("pages/penstock.8", md2man.Render(append([]byte(title), overview...))); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(pages, "*.[158]"))
	if err != nil {
		return err
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := r.keep("pages/man/"+filepath.Base(path)+".gz", compress(text)); err != nil {
			return err
		}
	}
	return nil
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
