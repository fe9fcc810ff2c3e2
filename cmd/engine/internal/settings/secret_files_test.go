package settings

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
	n := new(Options)
	n.Cluster.EtcdPassword, n.Cluster.EtcdPasswordFile = "a", write("one", "b", 0o600)
	if err := n.ReadSecretFiles(); err == nil || !strings.Contains(err.Error(), "give only one") {
		t.Error(err)
	}
	n.Cluster.EtcdPassword = ""
	n.Offers.authAddresses, n.Offers.AuthFile = "a:1", write("more", "b:2\r\n\nc:3", 0o640)
	if err := n.ReadSecretFiles(); err != nil || n.Cluster.EtcdPassword != "b" ||
		strings.Join(n.Offers.AuthServers, ",") != "a:1,b:2,c:3" {
		t.Errorf("%+v, %v", n.Offers, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
