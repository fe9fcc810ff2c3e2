package server

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/nsqtest"
)

// When a write to the disk fails, the publish is refused with the reason, the connection ends, and /ping reports it.
func TestDiskFailure(t *testing.T) {
	disk := faultaio.New(faultaio.Options{Seed: 1})
	n := startNode(t, node.Options{Disk: disk}, Options{})
	c, d := n.dial(t), n.dial(t)
	c.Send(nsqtest.Pub("t", "x"))
	c.OK()
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Count: -1, Err: syscall.EIO})
	c.Send(nsqtest.Pub("t", "y"))
	c.Fatal("E_PUB_FAILED PUB failed " + errs.ErrDisk.Error())
	d.Send("MPUB t\n" + nsqtest.Sized(nsqtest.BatchBody("a", "b")))
	d.Fatal("E_MPUB_FAILED MPUB failed " + errs.ErrDisk.Error())
	if code, body := n.do(t, "GET", "/ping", ""); code != 500 || !strings.HasPrefix(body, "NOK - ") {
		t.Errorf("/ping: %d %s", code, body)
	}
	if code, body := n.do(t, "POST", "/pub?topic=t", "x"); code != 503 || !strings.Contains(body, "the disk failed") {
		t.Errorf("/pub: %d %s", code, body)
	}
	if err := n.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := n.e.Close(); err == nil {
		t.Error("closing a failed engine reports nothing")
	}
}
