package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"penstock/segment/aio"
)

// renamed are the folders between which files are renamed: spare files of the commit log come into use and go back, and
// what is deleted goes to the trash.
var renamed = []string{"clog", "spare", topicsDir, Trash}

// CheckDevices returns an error if one of the folders between which files are renamed is on another file system than
// the data directory, or is a link. The system refuses such a rename: the node would never be ready, or nothing that is
// deleted would ever be freed.
func CheckDevices(disk aio.Disk) error {
	entries, err := disk.ReadDir(".")
	if err != nil {
		return fmt.Errorf("engine: the data directory cannot be listed: %w", err)
	}
	home, err := disk.Identify(".")
	if err != nil {
		return fmt.Errorf("engine: the data directory cannot be looked at: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !slices.Contains(renamed, name) {
			continue
		}
		if entry.Mode()&fs.ModeSymlink != 0 {
			return misplaced(name, "is a link")
		}
		is, err := disk.Identify(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("engine: the folder %s of the data directory cannot be looked at: %w", name, err)
		case is.Device != home.Device:
			return misplaced(name, "is on another file system than the data directory")
		}
	}
	return nil
}

func misplaced(name, how string) error {
	return fmt.Errorf("engine: the folder %s of the data directory %s, and files must be renamed between its folders: "+
		"nothing was changed. Stop the node, copy the content of %s into a folder of that name in the data directory "+
		"itself, and put the whole data directory on the file system that is to hold it", name, how, name)
}
