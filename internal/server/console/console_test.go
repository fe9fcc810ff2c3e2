package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxLines bounds our own JavaScript: the console is small enough to be read.
const maxLines = 1950

func TestFilesAreServed(t *testing.T) {
	h := Handler("/console/")
	for path, want := range map[string]struct {
		status int
		kind   string
	}{
		"/console/":                  {200, "text/html; charset=utf-8"},
		"/console/index.html":        {200, "text/html; charset=utf-8"},
		"/console/app.js":            {200, "text/javascript; charset=utf-8"},
		"/console/vendor/preact.mjs": {200, "text/javascript; charset=utf-8"},
		"/console/console.css":       {200, "text/css; charset=utf-8"},
		"/console/icon.svg":          {200, "image/svg+xml"},
		"/console/vendor":            {404, ""},
		"/console/vendor/":           {404, ""},
		"/console/../console.go":     {404, ""},
		"/console/none":              {404, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost"+path, nil))
		if w.Code != want.status || want.kind != "" && w.Header().Get("Content-Type") != want.kind {
			t.Errorf("%s: %d %s", path, w.Code, w.Header().Get("Content-Type"))
		}
		if w.Code != 200 {
			continue
		}
		if got := w.Header().Get("Content-Security-Policy"); got != Policy || w.Header().Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: headers %v", path, w.Header())
		}
		r := httptest.NewRequest("GET", "http://localhost"+path, nil)
		r.Header.Set("If-None-Match", w.Header().Get("ETag"))
		again := httptest.NewRecorder()
		if h.ServeHTTP(again, r); again.Code != 304 || again.Body.Len() != 0 {
			t.Errorf("%s again: %d", path, again.Code)
		}
	}
	if strings.Contains(Policy, "unsafe") || !strings.HasPrefix(Policy, "default-src 'none';") {
		t.Errorf("the policy %q lets something run that is not ours", Policy)
	}
}

// The libraries are what vendor-web fetched, and every file of theirs is listed.
func TestVendoredFiles(t *testing.T) {
	const dir = "static/vendor"
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{"SHA256SUMS": true}
	for _, line := range strings.Split(strings.TrimSpace(string(sums)), "\n") {
		sum, name, _ := strings.Cut(line, "  ")
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s was changed: run make vendor-web", name)
		}
		listed[name] = true
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !listed[f.Name()] {
			t.Errorf("%s is not in SHA256SUMS", f.Name())
		}
	}
}

// Our scripts are few, have short lines, and keep to what the policy and the safety of text need: no element is ever
// made from a string.
func TestOwnScripts(t *testing.T) {
	banned := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|dangerously|document\.write|\beval\(|new Function|` +
		`localStorage|sessionStorage|https?://`)
	total := 0
	err := fs.WalkDir(embedded, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(name, "static/vendor") {
			return err
		}
		data, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".html") && regexp.MustCompile(`(?i)<script>|style=|\son[a-z]+=`).Match(data) {
			t.Errorf("%s has something inline", name)
		}
		if !strings.HasSuffix(name, ".js") {
			return nil
		}
		total += bytes.Count(data, []byte("\n"))
		for i, line := range strings.Split(string(data), "\n") {
			if banned.MatchString(line) {
				t.Errorf("%s:%d: %s", name, i+1, strings.TrimSpace(line))
			}
			if len([]rune(line)) > 120 {
				t.Errorf("%s:%d has more than 120 characters", name, i+1)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if total > maxLines {
		t.Errorf("there are %d lines of JavaScript, more than %d", total, maxLines)
	}
}
