// Package console is the web console of a node: pages that run in a browser and show what the HTTP API answers. It has
// no data and no rights of its own; docs/console.md says what it shows, and docs/openapi.yaml describes the API.
//
// The pages are plain ES modules without a build step: what is in static is what browsers get. static/vendor has
// libraries of others, which `make vendor-web` fetches from npm by version and hash; nothing there is edited by hand.
// [Handler] serves them with a policy by which a browser runs only these scripts and talks only to this node, so that
// text from messages, names and headers stays text, whatever it is.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var embedded embed.FS

// Policy is the Content-Security-Policy of every answer: nothing inline, nothing from elsewhere, no frames.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file is one of the files as it is served.
type file struct {
	data []byte
	kind string // Content-Type
	tag  string // ETag
}

// Handler serves the console below prefix, which begins and ends with a slash. Every path that has no file is answered
// 404. Browsers ask each time whether a file has changed, and get 304 if it has not: after an upgrade of the node they
// show the new console at once.
func Handler(prefix string) http.Handler {
	files := map[string]file{}
	err := fs.WalkDir(embedded, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		at := prefix + strings.TrimPrefix(name, "static/")
		files[at] = file{data, kindOf(name), `"` + hex.EncodeToString(sum[:16]) + `"`}
		return nil
	})
	if err != nil {
		panic("BUG: " + err.Error()) // the files are in the program
	}
	files[prefix] = files[prefix+"index.html"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", Policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Type", f.kind)
		h.Set("ETag", f.tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.data))
	})
}

// kindOf returns the Content-Type of a file. It does not ask the system, whose table may know no .js.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	if kind := mime.TypeByExtension(path.Ext(name)); kind != "" {
		return kind
	}
	return "text/plain; charset=utf-8"
}
