package backup

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
)

const (
	// ManifestFile is the name of the manifest in the backup.
	ManifestFile = datadir.BackupFile
	// MetadataFile has the metadata of the cluster.
	MetadataFile = "cluster.json"
	// MaxMetadataBytes bounds it; a partition takes about 300 bytes.
	MaxMetadataBytes = 1 << 30
	// Format is the only format of the manifest so far.
	Format = 1
	// maxManifestBytes bounds the manifest; a file takes about 150 bytes.
	maxManifestBytes = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Manifest says what a backup holds. FORMAT.md describes it.
type Manifest struct {
	Format  int       `json:"format"`
	MadeBy  string    `json:"made_by"`
	Began   int64     `json:"began"` // Unix time in seconds
	NodeID  string    `json:"node_id"`
	Cluster uuid.UUID `json:"cluster,omitzero"` // zero: of a single node
	Lacks   string    `json:"lacks,omitempty"`  // what is wrong with the commit log that was copied; "": nothing is known
	// Missing lists what did not verify in the node's segments when they were copied.
	Missing []Missing `json:"missing,omitempty"`
	Files   []File    `json:"files"` // sorted by name, each once
}

// File is one file of a backup.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	CRC    string `json:"crc32c"`
	Linked bool   `json:"linked,omitempty"`
}

func sumText(sum uint32) string { return fmt.Sprintf("%08x", sum) }

// check returns an error if the manifest is not one that this version can restore.
func (m *Manifest) check() error {
	if m.Format != Format {
		return fmt.Errorf("its manifest has format %d, and this version knows %d: use the version that made it (%s)",
			m.Format, Format, m.MadeBy)
	}
	last := ""
	for _, f := range m.Files {
		_, err := strconv.ParseUint(f.CRC, 16, 32)
		switch {
		case !fs.ValidPath(f.Name) || f.Name == "." || f.Name == ManifestFile || f.Bytes < 0 || err != nil:
			return fmt.Errorf("its manifest has an impossible entry: %q of %d bytes", f.Name, f.Bytes)
		case f.Name <= last:
			return fmt.Errorf("its manifest is not sorted at %q", f.Name)
		}
		last = f.Name
	}
	if !slices.ContainsFunc(m.Files, func(f File) bool { return f.Name == datadir.NodePath }) {
		return fmt.Errorf("its manifest has no %s", datadir.NodePath)
	}
	return nil
}

// ReadManifest reads and checks the manifest of the backup in the directory from. It reads no other file.
func ReadManifest(from string) (*Manifest, error) {
	data, err := readLimited(filepath.Join(from, ManifestFile), maxManifestBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("backup: %s is no complete backup: it has no %s, which is written last; nothing was "+
			"restored, take another backup", from, ManifestFile)
	}
	m := new(Manifest)
	if err == nil {
		err = datadir.UnsealFile(data, m, m.check)
	}
	if err != nil {
		return nil, fmt.Errorf("backup: %s cannot be restored: %s: %w; nothing was restored", from, ManifestFile, err)
	}
	return m, nil
}

// Metadata returns the cluster's metadata in the backup in the directory from, verified, or nil if it has none. Only
// the manifest and MetadataFile need to be there.
func (m *Manifest) Metadata(from string) (data []byte, err error) {
	err = m.small(from, MetadataFile, MaxMetadataBytes, func(p []byte) error { data = p; return nil })
	if err != nil {
		return nil, fmt.Errorf("backup: %w; nothing was restored", err)
	}
	return data, nil
}

// small reads and verifies a small file, and passes it to decode. A file that the backup does not have is not passed.
func (m *Manifest) small(from, name string, limit int64, decode func([]byte) error) error {
	i, ok := slices.BinarySearchFunc(m.Files, name, func(f File, name string) int {
		return strings.Compare(f.Name, name)
	})
	if !ok {
		return nil
	}
	data, err := readLimited(filepath.Join(from, name), limit)
	if err != nil {
		return damaged(name, err.Error())
	}
	if sum := sumText(crc32.Checksum(data, castagnoli)); sum != m.Files[i].CRC {
		return damaged(name, fmt.Sprintf("its checksum is %s instead of %s", sum, m.Files[i].CRC))
	}
	if err := decode(data); err != nil {
		return damaged(name, err.Error())
	}
	return nil
}

// readLimited reads a file of at most limit bytes.
func readLimited(name string, limit int64) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, which is too much", name, st.Size())
	}
	return os.ReadFile(name)
}

// parents returns the directories above a name, the outermost first.
func parents(name string) (all []string) {
	for d := path.Dir(name); d != "."; d = path.Dir(d) {
		all = append(all, d)
	}
	slices.Reverse(all)
	return all
}

// topicOf returns the topic to whose directory the file belongs.
func topicOf(name string) (id uuid.UUID, rest string, ok bool) {
	in, ok := strings.CutPrefix(name, "topics/")
	if !ok {
		return id, "", false
	}
	text, rest, ok := strings.Cut(in, "/")
	if !ok {
		return id, "", false
	}
	id, err := uuid.Parse(text)
	return id, rest, err == nil
}
