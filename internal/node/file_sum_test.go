package node_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/node"
)

// Every single bit of node.json and of topic.json is flipped in turn, and each flip is noticed.
func TestEveryBitOfTheCatalog(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	topicFiles, err := filepath.Glob(dir + "/topics/*/topic.json")
	if err != nil || len(topicFiles) != 1 {
		t.Fatal(topicFiles, err)
	}
	for _, name := range []string{dir + "/node.json", topicFiles[0]} {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for bit := range len(whole) * 8 {
			bad := bytes.Clone(whole)
			bad[bit/8] ^= 1 << (bit % 8)
			if err := node.ReadCatalogFile(bad, filepath.Base(filepath.Dir(name))); err == nil {
				t.Errorf("%s: nobody sees that bit %d of %q is turned", filepath.Base(name), bit%8, whole[bit/8])
			}
		}
	}
}

// A damaged file is replaced by its copy, a damaged copy by its file, and both are logged.
func TestCatalogMendsItself(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	topicFiles, err := filepath.Glob(dir + "/topics/*/topic*.json")
	if err != nil || len(topicFiles) != 2 {
		t.Fatal(topicFiles, err)
	}
	for _, name := range append(topicFiles, dir+"/node.json", dir+"/node.copy.json") {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(whole)
		bad[len(bad)/2] ^= 4
		if err := os.WriteFile(name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		log := &logged{}
		o := inDir(dir)
		o.Logger = log.logger()
		e := openWith(t, o)
		if len(e.Catalog().Topics()) != 1 {
			t.Fatalf("%s: the topic is not served", name)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		mended, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(mended, whole) {
			t.Errorf("%s was not mended (%v):\n%s", name, err, mended)
		}
		if !strings.Contains(log.String(), "was damaged") {
			t.Errorf("%s: it is not told:\n%s", name, log)
		}
	}
}
