package migrate

import (
	"archive/tar"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// unpack extracts the data directory of a real nsqd; see testdata/make.sh.
func unpack(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".tar.gz"))
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	dir := t.TempDir()
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		must(t, err)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(r)
		must(t, err)
		write(t, dir, filepath.Base(h.Name), data)
	}
}

func write(t testing.TB, dir, name string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rec returns a record with this id and body.
func rec(id int, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(messageHeaderBytes+len(body)))
	b = binary.BigEndian.AppendUint64(b, uint64(1000+id))
	b = binary.BigEndian.AppendUint16(b, 1)
	b = fmt.Appendf(b, "%016x", id)
	return append(b, body...)
}

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func open(t testing.TB, dir string, o SourceOptions) *Source {
	t.Helper()
	s, err := Open(dir, o)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func bodies(t testing.TB, q *Queue) ([]string, Counts) {
	t.Helper()
	all := []string{}
	c, err := q.Read(func(m *Message) error {
		all = append(all, string(m.Body))
		return nil
	})
	must(t, err)
	return all, c
}
