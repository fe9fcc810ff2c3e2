package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers itself
)

// sumsName is the file with the sums of all others, in the format of sha256sum.
const sumsName = "SHA256SUMS"

const description = `Durable, replicated message engine that speaks the NSQ protocol
Unmodified NSQ clients publish to it and consume from it. An OK means that the
message is on stable storage, on one node or on every in-sync replica. The nodes
of a cluster agree on membership and leadership through an embedded etcd.`

// make writes all files of the release into r.out.
func (r *release) make(ctx context.Context, architectures []string) error {
	if err := emptied(r.out); err != nil {
		return err
	}
	pages, err := r.pages(ctx)
	if err != nil {
		return err
	}
	for _, arch := range architectures {
		if err := r.makeFor(ctx, arch, pages); err != nil {
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

func (r *release) makeFor(ctx context.Context, arch, pages string) error {
	binary, err := r.build(ctx, arch)
	if err != nil {
		return err
	}
	sbom, err := r.sbom(binary, arch)
	if err != nil {
		return err
	}
	base := fmt.Sprintf("penstock-%s-linux-%s", r.version, arch)
	sbomPath := filepath.Join(r.out, base+".cdx.json")
	if err := os.WriteFile(sbomPath, sbom, 0o644); err != nil {
		return err
	}
	licences, err := r.licences(ctx, binary)
	if err != nil {
		return err
	}
	licencePath := filepath.Join(r.scratch, arch, "copyright")
	if err := os.WriteFile(licencePath, licences, 0o644); err != nil {
		return err
	}
	all, err := r.contents(ctx, binary, sbomPath, licencePath, pages)
	if err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		if err := r.writePackage(format, arch, all); err != nil {
			return fmt.Errorf("%s for %s: %w", format, arch, err)
		}
	}
	if err := r.rootFS(base, binary, licencePath); err != nil {
		return err
	}
	return r.archive(base, all)
}

// info is what nfpm makes a package of one format from.
func (r *release) info(format, arch string, all []entry) *nfpm.Info {
	info := &nfpm.Info{
		Name: "penstock", Arch: arch, Platform: "linux", Version: r.version, Release: "1", VersionSchema: "semver",
		Section: "net", Priority: "optional", Maintainer: "The Penstock project", License: "Apache-2.0",
		Description: description, MTime: r.date, DisableGlobbing: true,
	}
	for _, e := range all {
		if e.only != "" && e.only != format {
			continue
		}
		c := &files.Content{
			Source: e.from, Destination: e.path,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: e.mode, MTime: r.date},
		}
		switch e.kind {
		case settings:
			c.Type = files.TypeConfigNoReplace
		case folder:
			c.Type = files.TypeDir
		}
		if format == "rpm" && e.group != "" { // dpkg unpacks before the user is made: see files/deb/postinst
			c.FileInfo.Group = e.group
		}
		info.Contents = append(info.Contents, c)
	}
	switch format {
	case "deb":
		info.Depends = []string{"debconf (>= 0.5) | debconf-2.0", "init-system-helpers", "passwd"}
		info.Scripts = nfpm.Scripts{
			PostInstall: "files/deb/postinst", PreRemove: "files/deb/prerm", PostRemove: "files/deb/postrm",
		}
		info.Deb.Scripts.Templates = "files/deb/templates"
	case "rpm":
		info.Depends = []string{"/usr/sbin/useradd"}
		info.Scripts = nfpm.Scripts{
			PreInstall: "files/rpm/pre", PostInstall: "files/rpm/post", PreRemove: "files/rpm/preun",
			PostRemove: "files/rpm/postun",
		}
		info.RPM.BuildHost = "localhost" // equal bytes on every machine
		info.RPM.Summary, _, _ = strings.Cut(description, "\n")
	}
	return info
}

func (r *release) writePackage(format, arch string, all []entry) error {
	info := nfpm.WithDefaults(r.info(format, arch, all))
	if err := nfpm.PrepareForPackager(info, format); err != nil {
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

// belowLocal gives the files of the package the paths that they have when the archive is unpacked into /usr/local.
var belowLocal = strings.NewReplacer("/usr/bin/", "/usr/local/bin/", "/etc/penstock", "/usr/local/etc/penstock")

// archive writes the files without a package manager, below one directory: usr's are at its top.
func (r *release) archive(base string, all []entry) error {
	all = slices.DeleteFunc(slices.Clone(all), func(e entry) bool {
		return e.kind == folder || e.only != "" && e.only != "tar"
	})
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	for i := range all {
		all[i].path = base + strings.TrimPrefix(all[i].path, "/usr")
		all[i].mode |= 0o044
	}
	return r.tar(base+".tar.gz", all)
}

// containerUser is the user and the group of the image's process: a number, because the image has no list of users.
const containerUser = 10001

// rootFS writes the files of the image that Containerfile describes.
func (r *release) rootFS(base, binary, licences string) error {
	return r.tar(base+".rootfs.tar.gz", []entry{
		{path: "usr/bin/engine", from: binary, mode: 0o755},
		{path: "usr/share/doc/penstock/copyright", from: licences, mode: 0o644},
		{path: "var/lib/penstock/", kind: folder, mode: 0o750, owner: containerUser},
	})
}

// tar writes a compressed archive with these files, whose paths are relative.
func (r *release) tar(name string, all []entry) error {
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer out.Close()
	z := gzip.NewWriter(out)
	w := tar.NewWriter(z)
	for _, e := range all {
		h := &tar.Header{Name: e.path, Mode: int64(e.mode), ModTime: r.date, Uid: e.owner, Gid: e.owner}
		var text []byte
		if h.Typeflag = tar.TypeDir; e.kind != folder {
			if text, err = os.ReadFile(e.from); err != nil {
				return err
			}
			if e.paths {
				text = []byte(belowLocal.Replace(string(text)))
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(text))
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
