//go:build packages

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// imageConfig is what `buildah inspect` says of an image.
type imageConfig struct {
	OCIv1 struct {
		Config struct {
			User, StopSignal     string
			Env, Entrypoint, Cmd []string
			Volumes              map[string]struct{}
			ExposedPorts         map[string]struct{}
		}
	}
}

// imageScript runs the image's command in its file system and a network of its own: publishes, and stops it with the
// image's signal.
const imageScript = `set -e
ip link set lo up
mkdir -p "$ROOT/proc" && mount -t proc proc "$ROOT/proc"
setpriv --no-new-privs chroot --userspec="$RUN_USER" --groups= "$ROOT" "$@" >"$LOG" 2>&1 &
pid=$!
for i in $(seq 600); do
	if curl -sf http://127.0.0.1:4151/readyz; then break; fi
	kill -0 $pid
	sleep 0.1
done
[ "$(curl -sd hello 'http://127.0.0.1:4151/pub?topic=orders')" = OK ]
kill -"${SIGNAL#SIG}" $pid
wait $pid
`

// runImage builds the image with buildah, as Containerfile says, and runs what it has.
func runImage(t *testing.T, dist, version string) {
	t.Helper()
	mustHaveMachine(t)
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skipf("not run: %v (apt-get install buildah)", err)
	}
	store := t.TempDir()
	buildah := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("buildah", append([]string{
			"--storage-driver", "vfs", "--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"),
		}, args...)...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("buildah %q: %v\n%s", args, err, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
	buildah("bud", "--isolation", "chroot", "--build-arg", "VERSION="+version, "--build-arg", "TARGETARCH=amd64",
		"-f", "Containerfile", "-t", "penstock:test", dist)
	var image imageConfig
	must(t, json.Unmarshal([]byte(buildah("inspect", "--type", "image", "penstock:test")), &image))
	c := image.OCIv1.Config
	if _, has := c.Volumes["/var/lib/penstock"]; !has || c.StopSignal != "SIGTERM" || len(c.ExposedPorts) != 4 {
		t.Errorf("the image's configuration is %+v", c)
	}
	root := buildah("mount", buildah("from", "--pull-never", "penstock:test"))
	log := filepath.Join(store, "log")
	args := append([]string{"--mount", "--net", "sh", "-c", imageScript, "sh"}, append(c.Entrypoint, c.Cmd...)...)
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), append(c.Env, "ROOT="+root, "RUN_USER="+c.User, "SIGNAL="+c.StopSignal, "LOG="+log)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("running the image: %v\n%s%s", err, out, readFile(t, log))
	}
	if _, err := os.Stat(filepath.Join(root, "var/lib/penstock/node.json")); err != nil {
		t.Error(err)
	}
}
