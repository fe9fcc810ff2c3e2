// Package docs runs the commands of README.md and of the documents in docs/, in their order, with the real programs,
// and compares what they print with what the documents show. CONTRIBUTING.md has the form in which documents are
// written.
//
// Each document has a machine of its own, made of Linux namespaces: its file system is a copy of this machine's that is
// thrown away, and its network has nothing but a loopback interface, so that the commands run with the ports and the
// directories that the document names. A document about several machines has several of these, and a network.
//
// That every block of commands says how it is run is tested always. To run them needs root, util-linux and iproute2,
// and carries the build tag docs: make docs-test does it.
package docs
