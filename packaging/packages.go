package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers itself
)

// sumsName is the file with the sums of all others, in the format of sha256sum.
const sumsName = "SHA256SUMS"

// make writes all files of the release into r.out.
func (r *release) make(ctx context.Context, architectures []string) error {
	if err := emptied(r.out); err != nil {
		return err
	}
	if err := r.pages(ctx); err != nil {
		return err
	}
	if err := r.documents(ctx); err != nil {
		return err
	}
	for _, arch := range architectures {
		if err := r.makeFor(ctx, arch); err != nil {
			return err
		}
	}
	return r.sums()
}

// emptied makes the directory for the packages, or removes what an earlier run has left in it. A directory with
// anything else in it is somebody's: that is an error, and nothing is removed.
func emptied(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() != sumsName && !strings.HasPrefix(e.Name(), "penstock") {
			return fmt.Errorf("%s has %s, which is none of the packages; nothing was removed: choose another directory",
				dir, e.Name())
		}
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// documents copies those for users and operators: README.md, CHANGELOG.md, SECURITY.md, docs without their tests and
// without docs/contribute, and the descriptions of formats. They are in the same places to each other as in the source,
// so that the links work. The files of deploy become examples.
func (r *release) documents(ctx context.Context) error {
	list, err := output(ctx, r.source, "git", "ls-files", "*.md", "docs", "deploy")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(list, "\n") {
		below := strings.HasPrefix(name, "docs/") || strings.HasPrefix(name, "deploy/")
		test := filepath.Ext(name) == ".go" && !strings.HasPrefix(name, "docs/clients/examples/")
		if test || forContributors(name) || !below && strings.Contains(name, "/") && filepath.Base(name) != "FORMAT.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(r.source, name))
		if err != nil {
			return err
		}
		if below, is := strings.CutPrefix(name, "deploy/"); is {
			name = "examples/" + below
		}
		if err := r.keep(filepath.Join("documents", name), text); err != nil {
			return err
		}
	}
	return nil
}

// forContributors says whether a document is about the source, and not carried.
func forContributors(name string) bool {
	return strings.HasPrefix(name, "docs/contribute/") ||
		slices.Contains([]string{"ARCHITECTURE.md", "CONTRIBUTING.md", "TRACKRECORD.md"}, name)
}

// changelog is what Debian wants to know of a version; CHANGELOG.md says what is new.
func (r *release) changelog(maintainer string) []byte {
	return fmt.Appendf(nil, "penstock (%s-1) unstable; urgency=medium\n\n"+
		"  * New version: see CHANGELOG.md.\n\n -- %s  %s\n",
		strings.Replace(r.version, "-", "~", 1), maintainer, r.date.Format(time.RFC1123Z))
}

// keep writes a file below the directory of what was built.
func (r *release) keep(name string, text []byte) error {
	path := filepath.Join(r.scratch, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// makeFor builds the program of an architecture, and writes its packages, its SBOM, its archive and the files of its
// image.
func (r *release) makeFor(ctx context.Context, arch string) error {
	binary, err := r.build(ctx, arch)
	if err != nil {
		return err
	}
	base := fmt.Sprintf("penstock-%s-linux-%s", r.version, arch)
	sbom, err := r.sbom(binary, arch)
	if err != nil {
		return err
	}
	licences, err := r.licences(ctx, binary)
	if err != nil {
		return err
	}
	values := map[string]string{"VERSION": r.version, "ARCH": arch, "BUILD": r.scratch}
	config, err := nfpm.ParseFileWithEnvMapping("nfpm.yaml", func(name string) string { return values[name] })
	if err != nil {
		return err
	}
	for _, err := range []error{
		r.keep("changelog.Debian.gz", compress(r.changelog(config.Maintainer))),
		r.keep(filepath.Join(arch, "penstock.cdx.json"), sbom),
		r.keep(filepath.Join(arch, "third-party.txt"), licences),
		os.WriteFile(filepath.Join(r.out, base+".cdx.json"), sbom, 0o644),
	} {
		if err != nil {
			return err
		}
	}
	for _, format := range []string{"deb", "rpm"} {
		if err := r.writePackage(&config, format); err != nil {
			return fmt.Errorf("%s for %s: %w", format, arch, err)
		}
	}
	if err := r.rootFS(base, binary, filepath.Join(r.scratch, arch, "third-party.txt")); err != nil {
		return err
	}
	return r.archive(base, &config)
}

func (r *release) writePackage(config *nfpm.Config, format string) error {
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info.MTime = r.date
	if info.Contents, err = r.contents(info.Contents, info.Umask, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := packager.Package(info, &b); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, packager.ConventionalFileName(info)), b.Bytes(), 0o644)
}

// contents returns the files of one format, in order of their paths, all of them of the release's date.
func (r *release) contents(all files.Contents, umask os.FileMode, format string) (files.Contents, error) {
	all, err := files.PrepareForPackager(all, umask, format, false, r.date)
	for _, c := range all {
		c.FileInfo.MTime = r.date
	}
	return all, err
}

// belowLocal gives the files of the package the paths that they have when the archive is unpacked into /usr/local.
var belowLocal = strings.NewReplacer("/usr/bin/", "/usr/local/bin/", "/etc/penstock", "/usr/local/etc/penstock")

// archive writes the files without a package manager, below one directory: usr's are at its top.
func (r *release) archive(base string, config *nfpm.Config) error {
	all, err := r.contents(config.Contents, config.Umask, "tar")
	if err != nil {
		return err
	}
	var in files.Contents
	for _, c := range all {
		if !c.IsDir() {
			c.Destination = base + strings.TrimPrefix(c.Destination, "/usr")
			in = append(in, c)
		}
	}
	return r.tar(base+".tar.gz", in)
}

// containerUser is the user and the group of the image's process: a number, because the image has no list of users.
const containerUser = 10001

// rootFS writes the files of the image that Containerfile describes.
func (r *release) rootFS(base, binary, licences string) error {
	root := func(mode os.FileMode) *files.ContentFileInfo { return &files.ContentFileInfo{Mode: mode} }
	return r.tar(base+".rootfs.tar.gz", files.Contents{
		{Destination: "usr/bin/penstock", Source: binary, FileInfo: root(0o755)},
		{Destination: "usr/share/doc/penstock/third-party.txt", Source: licences, FileInfo: root(0o644)},
		{
			Destination: "var/lib/penstock/", Type: files.TypeDir,
			FileInfo: &files.ContentFileInfo{Mode: 0o750, Owner: strconv.Itoa(containerUser)},
		},
	})
}

// tar writes a compressed archive with these files, whose paths are relative. Owners are numbers; any other is root.
// The unit and the settings name other files of the package, which those of the archive have below /usr/local.
func (r *release) tar(name string, all files.Contents) error {
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer out.Close()
	z := gzip.NewWriter(out)
	w := tar.NewWriter(z)
	for _, c := range all {
		owner, _ := strconv.Atoi(c.FileInfo.Owner)
		h := &tar.Header{
			Name: c.Destination, Typeflag: tar.TypeReg, Mode: int64(c.FileInfo.Mode.Perm()), ModTime: r.date,
			Uid: owner, Gid: owner,
		}
		var text []byte
		switch {
		case c.IsDir():
			h.Typeflag = tar.TypeDir
		case c.Type == files.TypeSymlink:
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, c.Source, 0o777
		default:
			if text, err = os.ReadFile(c.Source); err != nil {
				return err
			}
			if strings.HasPrefix(c.Source, "files/") {
				text = []byte(belowLocal.Replace(string(text)))
			}
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	for _, c := range []io.Closer{w, z, out} {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// sums writes SHA256SUMS, which `sha256sum --check` reads.
func (r *release) sums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, sumsName), []byte(b.String()), 0o644)
}
