// Pictures draws the pictures of docs/concepts.md: go run ./tools/pictures writes them to docs/pictures. The same call
// writes the same bytes, and a test compares them with the files.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// pictures are the names of the files, and what draws them.
var pictures = map[string]func() string{
	"write-path.svg": writePath,
	"channel.svg":    channel,
}

func main() {
	dir := "docs/pictures"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	for name, draw := range pictures {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(draw()), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "pictures:", err)
			os.Exit(1)
		}
	}
}
