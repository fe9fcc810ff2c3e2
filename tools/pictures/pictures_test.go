package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// The files in docs/pictures are what this program draws, and well-formed.
func TestPicturesAreDrawn(t *testing.T) {
	entries, err := os.ReadDir("../../docs/pictures")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(pictures) {
		t.Errorf("docs/pictures has %d files, and %d are drawn", len(entries), len(pictures))
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
