package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files of secrets are taken together with the settings.
func TestReadSecretFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		must(t, os.WriteFile(name, []byte(text), mode))
		must(t, os.Chmod(name, mode))
		return name
	}
	n := new(options)
	n.cluster.etcdPassword, n.cluster.etcdPasswordFile = "a", write("one", "b", 0o600)
	if err := n.readSecretFiles(); err == nil || !strings.Contains(err.Error(), "give only one") {
		t.Error(err)
	}
	n.cluster.etcdPassword = ""
	n.offers.authAddresses, n.offers.authFile = "a:1", write("more", "b:2\r\n\nc:3", 0o640)
	if err := n.readSecretFiles(); err != nil || n.cluster.etcdPassword != "b" ||
		strings.Join(n.offers.authServers, ",") != "a:1,b:2,c:3" {
		t.Errorf("%+v, %v", n.offers, err)
	}
}
