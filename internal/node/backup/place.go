package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// Apart returns an error if one of the directories lies in the other, or they are the same, also by symbolic links.
// what names the first one. Neither needs to exist.
func Apart(what, first, second string) error {
	a, err := realPath(first)
	if err != nil {
		return err
	}
	b, err := realPath(second)
	if err != nil {
		return err
	}
	for _, c := range [][2]string{{a, b}, {b, a}} {
		if rel, err := filepath.Rel(c[0], c[1]); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return fmt.Errorf("%s and the %s %s lie in each other", second, what, first)
		}
	}
	return nil
}

// Below returns an error unless the directory lies below the place, also by symbolic links. Neither needs to exist.
func Below(place, dir string) error {
	a, err := realPath(place)
	if err != nil {
		return err
	}
	b, err := realPath(dir)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(a, b)
	if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
		return fmt.Errorf("%s does not lie below %s, the only place of this node's machine for backups, which its setting "+
			"backup-path names", dir, place)
	}
	return nil
}

// realPath returns the absolute path without symbolic links; the end of the path need not exist.
func realPath(name string) (string, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) && name != filepath.Dir(name) {
		above, err := realPath(filepath.Dir(name))
		return filepath.Join(above, filepath.Base(name)), err
	}
	return real, err
}
