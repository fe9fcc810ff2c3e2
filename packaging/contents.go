package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kind is how a package treats a file.
type kind int

const (
	plain    kind = iota
	settings      // the administrator's: an upgrade keeps what was changed
	folder
)

// entry is one file of the packages.
type entry struct {
	path  string // where it is on the machine
	from  string // the file with its contents; "" for a folder
	mode  os.FileMode
	kind  kind
	group string // of the package's user, in packages that can say it; "": root
	only  string // "deb", "rpm" or "tar"; "": all
	paths bool   // it names other files of the package, which those of the archive have below /usr/local
	owner int    // number of the user and of the group, only in the image of a container
}

// contents lists the files of the packages of one architecture. pages is what release.pages returned.
func (r *release) contents(ctx context.Context, binary, sbom, licences, pages string) ([]entry, error) {
	all := []entry{
		{path: "/usr/bin/engine", from: binary, mode: 0o755},
		{path: "/usr/lib/systemd/system/penstock.service", from: "files/penstock.service", paths: true},
		{path: "/usr/lib/sysusers.d/penstock.conf", from: "files/sysusers.conf"},
		{path: "/etc/penstock", mode: 0o750, kind: folder, group: "penstock"},
		{
			path: "/etc/penstock/penstock.toml", from: "files/penstock.toml", mode: 0o640, kind: settings, group: "penstock",
			paths: true,
		},
		{path: "/usr/share/bash-completion/completions/engine", from: filepath.Join(pages, "bash/engine")},
		{path: "/usr/share/zsh/vendor-completions/_engine", from: filepath.Join(pages, "zsh/_engine"), only: "deb"},
		{path: "/usr/share/zsh/site-functions/_engine", from: filepath.Join(pages, "zsh/_engine"), only: "rpm"},
		{path: "/usr/share/zsh/site-functions/_engine", from: filepath.Join(pages, "zsh/_engine"), only: "tar"},
		{path: "/usr/share/fish/vendor_completions.d/engine.fish", from: filepath.Join(pages, "fish/engine.fish")},
		{path: "/usr/share/doc/penstock/copyright", from: licences},
		{path: "/usr/share/doc/penstock/penstock.cdx.json", from: sbom},
	}
	documents, err := r.documents(ctx)
	if err != nil {
		return nil, err
	}
	all = append(all, documents...)
	man, err := filepath.Glob(filepath.Join(pages, "man/*.gz"))
	if err != nil {
		return nil, err
	}
	for _, path := range man {
		name := filepath.Base(path)
		section := filepath.Ext(strings.TrimSuffix(name, ".gz"))[1:]
		all = append(all, entry{path: "/usr/share/man/man" + section + "/" + name, from: path})
	}
	examples, err := r.examples()
	if err != nil {
		return nil, err
	}
	all = append(all, examples...)
	for i := range all {
		if all[i].mode == 0 {
			all[i].mode = 0o644
		}
	}
	return all, nil
}

// documents are those for users and operators: README.md, CHANGELOG.md, SECURITY.md, docs without their tests and
// without docs/contribute, and the descriptions of formats. They are in the same places to each other as in the source,
// so that the links work.
func (r *release) documents(ctx context.Context) (all []entry, err error) {
	list, err := output(ctx, r.source, "git", "ls-files", "*.md", "docs")
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Split(list, "\n") {
		below := strings.HasPrefix(name, "docs/")
		test := filepath.Ext(name) == ".go" && !strings.HasPrefix(name, "docs/clients/examples/")
		if test || forContributors(name) || !below && strings.Contains(name, "/") && filepath.Base(name) != "FORMAT.md" {
			continue
		}
		all = append(all, entry{path: "/usr/share/doc/penstock/" + name, from: filepath.Join(r.source, name)})
	}
	return all, nil
}

// forContributors says whether a document is about the source, and not carried.
func forContributors(name string) bool {
	return strings.HasPrefix(name, "docs/contribute/") ||
		slices.Contains([]string{"ARCHITECTURE.md", "CONTRIBUTING.md", "TRACKRECORD.md"}, name)
}

// examples are the files of deploy: boards, alerts and the manifests of Kubernetes.
func (r *release) examples() (all []entry, err error) {
	top := filepath.Join(r.source, "deploy")
	err = filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(top, path)
		all = append(all, entry{path: "/usr/share/doc/penstock/examples/" + below, from: path})
		return err
	})
	return all, err
}
