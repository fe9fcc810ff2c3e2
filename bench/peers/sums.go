package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// checkSums says whether a directory has exactly the listed files. A line of the list is as sha256sum writes it.
func checkSums(dir, list string) error {
	want := map[string]string{}
	for line := range strings.Lines(list) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			return fmt.Errorf("the list of sums has the line %q", line)
		}
		want[name] = sum
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		sum, err := sumOf(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		if sum != want[f.Name()] {
			return fmt.Errorf("%s in %s has the sum %s; listed is %q: it must not be used", f.Name(), dir, sum, want[f.Name()])
		}
		delete(want, f.Name())
	}
	for name := range want {
		return fmt.Errorf("%s is not in %s", name, dir)
	}
	return nil
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
