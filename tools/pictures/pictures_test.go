package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files .svg in docs/pictures are what this program draws, and well-formed.
func TestPicturesAreDrawn(t *testing.T) {
	files, err := filepath.Glob("../../docs/pictures/*.svg")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(pictures) {
		t.Errorf("docs/pictures has %d files .svg, and %d are drawn", len(files), len(pictures))
	}
	for name, draw := range pictures {
		drawn := draw()
		file, err := os.ReadFile("../../docs/pictures/" + name)
		if err != nil || string(file) != drawn {
			t.Errorf("docs/pictures/%s is not what is drawn (%v): go run ./tools/pictures", name, err)
		}
		for d := xml.NewDecoder(strings.NewReader(drawn)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}
