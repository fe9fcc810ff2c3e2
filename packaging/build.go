package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// build makes the static program of one architecture, and returns its path. Its bytes depend on the source, its
// libraries, the version of Go and the release's version and commit, and on nothing else.
func (r *release) build(ctx context.Context, arch string) (string, error) {
	path := filepath.Join(r.scratch, arch, "penstock")
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X 'main.commit=%s'", r.version, r.commit)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", path,
		"./cmd/engine")
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.source, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building cmd/engine for %s: %w", arch, err)
	}
	return path, nil
}
