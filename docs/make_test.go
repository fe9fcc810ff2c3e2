package docs_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Where git does not answer, because the checkout belongs to somebody else or is none, `make run` of the README must
// not let go build ask it: go build would fail.
func TestMakeWithoutGit(t *testing.T) {
	cmd := exec.Command("make", "-n", "program")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GIT_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "main.commit=unknown -buildvcs=false") {
		t.Errorf("without git, make does this: %v\n%s", err, out)
	}
}
