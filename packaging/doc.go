// Command packaging makes the files of a release: packages for Debian (deb) and for Red Hat and SUSE (rpm), an archive
// (tar.gz), a list of what the program is built from (SBOM, in CycloneDX), and the sums of all of them.
//
//	make package VERSION=1.2.3
//
// It is a module of its own, so that the libraries that it needs are no dependencies of the product. Its steps:
//
//	build.go     go build of cmd/engine for each architecture, static, without paths of this machine
//	pages.go     manual pages and completions, from the command tree (cmd/engine/manpages.go)
//	licences.go  the licences of all modules that the program contains
//	sbom.go      the SBOM, from what the program says that it is built from
//	nfpm.yaml    which file goes where, and what deb and rpm say of the package
//	packages.go  deb, rpm, tar.gz and SHA256SUMS
//
// Two runs on one commit write equal bytes: times come from SOURCE_DATE_EPOCH, or from the commit.
//
// The directory files has the unit of systemd, the settings, and the scripts of the packages. The tests install the
// packages on a throw-away copy of this machine on which systemd runs; see machine_test.go.
package main
