package docs_test

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The index of the documents leads to every file in docs/ that is for readers.
func TestIndexIsWhole(t *testing.T) {
	linked := make(map[string]bool)
	for _, m := range link.FindAllStringSubmatch(read(t, "README.md"), -1) {
		target, _, _ := strings.Cut(m[1], "#")
		linked[filepath.Clean(target)] = true
	}
	shown := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		aside := path == "README.md" || slices.Contains([]string{".go", ".svg", ".png"}, filepath.Ext(path))
		if err != nil || d.IsDir() || aside || strings.HasPrefix(path, "clients/examples/") {
			return err
		}
		shown++
		if !linked[path] {
			t.Errorf("docs/README.md does not lead to %s", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if shown < 20 {
		t.Errorf("docs/ has only %d files", shown)
	}
}

// The documents lead to the programs that lie beside them and are run: make clients.
func TestProgramsAreShown(t *testing.T) {
	for program, document := range map[string]string{
		"gonsq/main.go": "go.md", "native/main.go": "go.md",
		"python/shop.py": "python.md", "javascript/shop.js": "javascript.md",
	} {
		page := read(t, filepath.Join("clients", document))
		if !strings.Contains(page, "](examples/"+program+")") || !exists(filepath.Join("clients/examples", program)) {
			t.Errorf("docs/clients/%s does not lead to %s", document, program)
		}
	}
}
