//go:build clients

package clients

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster/trust"
	"penstock/tests/cluster/harness"
	"penstock/tests/support/porttest"
)

// NSQ's own programs speak TLS with `penstock nsqd` and nsqd's flags, without a word about versions: they offer 1.2 at
// most.
func TestUtilitiesOverTLS(t *testing.T) {
	engine, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca, files, err := trust.Init(filepath.Join(dir, "tls"), []trust.Node{{Name: "n", Hosts: []string{"127.0.0.1"}}},
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	address := porttest.Address(t)
	node := exec.Command(engine, "nsqd", "-tcp-address="+address, "-http-address=127.0.0.1:0", "-data-path="+dir,
		"-tls-cert="+files[0].Cert, "-tls-key="+files[0].Key, "-tls-required=tcp-https")
	node.Env = append(os.Environ(), "PENSTOCK_HTTPS_ADDRESS=127.0.0.1:0")
	var log bytes.Buffer
	node.Stderr = &log
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = node.Process.Signal(os.Interrupt)
		if err := node.Wait(); err != nil || t.Failed() {
			t.Errorf("the node ends with %v:\n%s", err, &log)
		}
	})
	until(t, "the node does not listen", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	options := func(kind string) []string {
		return []string{
			"-topic=lines", "-nsqd-tcp-address=" + address,
			"-" + kind + "-opt=tls_v1,true", "-" + kind + "-opt=tls_root_ca_file," + ca,
		}
	}
	program(t, "one\ntwo\n", "to_nsq", options("producer")...)
	if out := program(t, "", "nsq_tail", append(options("consumer"), "-channel=tail", "-n=2")...); strings.Join(
		strings.Fields(out), " ") != "one two" {
		t.Errorf("nsq_tail printed %q", out)
	}
}
