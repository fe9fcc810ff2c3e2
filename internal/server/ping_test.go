package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// While a disk hangs, the node works for its clients until the disk counts as failed. /ping says OK, as clients expect,
// and names the problem in a header.
func TestPingNamesWarnings(t *testing.T) {
	t.Parallel()
	disk := faultaio.New(faultaio.Options{Seed: 1})
	n := startNode(
		t, node.Options{Disk: disk, DiskPatience: 50 * time.Millisecond, DiskFailedAfter: time.Hour}, Options{},
	)
	ping := func() (int, string) {
		t.Helper()
		resp, err := http.Get(n.base + "/ping")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Penstock-Warnings")
	}
	if code, warnings := ping(); code != 200 || warnings != "" {
		t.Errorf("%d, %q", code, warnings)
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Count: -1, Hold: true})
	done := make(chan struct{})
	go func() { // waits for the disk
		defer close(done)
		if resp, err := http.Post(n.base+"/pub?topic=t", "", strings.NewReader("x")); err == nil {
			resp.Body.Close()
		}
	}()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		code, warnings := ping()
		if code == 200 && strings.Contains(warnings, "disk_hung=1") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d, %q", code, warnings)
		}
	}
	disk.ClearRules()
	disk.ReleaseHeld()
	<-done
}
