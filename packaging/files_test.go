//go:build packages

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// Two runs on one source write equal bytes.
func TestReproducible(t *testing.T) {
	again := t.TempDir()
	must(t, makeRelease(oldVersion, again))
	first, second := readFile(t, filepath.Join(dist, oldVersion, sumsName)), readFile(t, filepath.Join(again, sumsName))
	if first != second || strings.Count(first, "\n") != 5 {
		t.Errorf("the sums were\n%s\nand are\n%s", first, second)
	}
}

// lintian finds nothing in the Debian package that an override does not explain. Of other versions of it only errors
// count.
func TestLintian(t *testing.T) {
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skipf("not run: %v (apt-get install lintian)", err)
	}
	path := filepath.Join(dist, newVersion, "penstock_"+newVersion+"-1_amd64.deb")
	out, err := exec.Command("lintian", "--allow-root", "--tag-display-limit", "0", "--fail-on", "error", path).
		CombinedOutput()
	if t.Logf("lintian:\n%s", out); err != nil {
		t.Error(err)
	}
}

// unpacked returns a directory with what is in the archive, as below /usr/local.
func unpacked(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	archive := filepath.Join(dist, newVersion, "penstock-"+newVersion+"-linux-amd64.tar.gz")
	out, err := exec.Command("tar", "-xzf", archive, "-C", dir, "--strip-components=1").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// The archive has a program that runs, and the files beside it.
func TestArchive(t *testing.T) {
	dir := unpacked(t)
	version, err := exec.Command(filepath.Join(dir, "bin/penstock"), "version").Output()
	if err != nil || !strings.HasPrefix(string(version), "penstock "+newVersion+"\n") {
		t.Errorf("penstock version: %v, %s", err, version)
	}
	if old, err := exec.Command(filepath.Join(dir, "bin/engine"), "version").Output(); string(old) != string(version) {
		t.Errorf("the old name: %v, %s", err, old)
	}
	for _, name := range []string{
		"share/man/man1/penstock-serve.1.gz", "share/man/man5/penstock.toml.5.gz", "share/man/man8/penstock.8.gz",
		"share/zsh/site-functions/_penstock", "etc/penstock/penstock.toml", "lib/systemd/system/penstock.service",
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	settings := filepath.Join(dir, "etc/penstock/penstock.toml")
	text, err := exec.Command(filepath.Join(dir, "bin/penstock"), "config", "--config", settings).CombinedOutput()
	if err != nil || !strings.Contains(string(text), "/var/lib/penstock") {
		t.Errorf("penstock config: %v\n%s", err, text)
	}
	// What is commented out must be right, too.
	uncommented := filepath.Join(dir, "all.toml")
	all := strings.ReplaceAll(readFile(t, settings), "\n# ", "\n")
	var keys []string
	for line := range strings.Lines(all) {
		if strings.Contains(line, " = \"") && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}
	must(t, os.WriteFile(uncommented, []byte(strings.Join(keys, "")), 0o600))
	if text, err := exec.Command(filepath.Join(dir, "bin/penstock"), "config", "--config", uncommented).
		CombinedOutput(); err != nil || len(keys) < 10 {
		t.Errorf("penstock config with all %d settings: %v\n%s", len(keys), err, text)
	}
}

// The archive's unit and settings name the files that the archive has when it is unpacked into /usr/local, as
// docs/operate/packages.md says.
func TestArchiveKnowsItsPlace(t *testing.T) {
	dir := unpacked(t)
	unit := readFile(t, filepath.Join(dir, "lib/systemd/system/penstock.service"))
	m := regexp.MustCompile(`(?m)^ExecStart=(\S+) serve --config (\S+)$`).FindStringSubmatch(unit)
	if m == nil {
		t.Fatalf("the unit starts no node:\n%s", unit)
	}
	for _, path := range m[1:] {
		below, ok := strings.CutPrefix(path, "/usr/local/")
		if _, err := os.Stat(filepath.Join(dir, below)); !ok || err != nil {
			t.Errorf("the unit names %s: %v", path, err)
		}
	}
	settings := readFile(t, filepath.Join(dir, "etc/penstock/penstock.toml"))
	if strings.Contains(settings, " /etc/penstock") || !strings.Contains(settings, `"/usr/local/etc/penstock/auth.toml"`) {
		t.Errorf("the settings name files of another place:\n%s", settings)
	}
}

// Every link in a document of the package leads to a file of the package, or to a document for contributors, which only
// the source has.
func TestLinksInPackage(t *testing.T) {
	top := filepath.Join(unpacked(t), "share/doc/penstock")
	link, links := regexp.MustCompile(`\]\(([^)\s#]+)`), 0
	must(t, filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(readFile(t, path), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			target := filepath.Join(filepath.Dir(path), m[1])
			if name, err := filepath.Rel(top, target); err == nil && forContributors(name) {
				if _, err := os.Stat(target); err == nil {
					t.Errorf("the package has %s", name)
				}
				target = filepath.Join("..", name)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s leads to %s: %v", path, m[1], err)
			}
		}
		return nil
	}))
	if links < 100 {
		t.Errorf("the documents of the package have %d links", links)
	}
}

// The SBOM names the modules that the program contains, and the program's own sum.
func TestSBOM(t *testing.T) {
	text := readFile(t, filepath.Join(dist, newVersion, "penstock-"+newVersion+"-linux-amd64.cdx.json"))
	var bom cdx.BOM
	must(t, json.Unmarshal([]byte(text), &bom))
	if c := bom.Metadata.Component; c.Name != "penstock" || c.Version != newVersion || len(*c.Hashes) != 1 {
		t.Errorf("the SBOM is of %+v", c)
	}
	has := map[string]bool{}
	for _, c := range *bom.Components {
		has[c.Name] = true
	}
	for _, name := range []string{"std", "go.etcd.io/etcd/server/v3", "github.com/klauspost/compress"} {
		if !has[name] {
			t.Errorf("the SBOM lacks %s", name)
		}
	}
	if has["github.com/cpuguy83/go-md2man/v2"] || has["github.com/goreleaser/nfpm/v2"] {
		t.Error("the program contains what only packaging needs")
	}
}
