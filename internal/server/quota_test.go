package server

import (
	"strings"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/nsqtest"
)

// At a topic's quota a publish is answered with an error that says so, in the way in which nsqd reports that it cannot
// store a message. Over NSQ the connection then ends (E_PUB_FAILED is fatal in nsqd, too); over HTTP the status is 507.
// Consumers continue, and the messages that they finish make room.
//
// Related to B4 and B20.
func TestQuotaErrors(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/channel/create?topic=t&channel=c", "")
	topic, _ := n.e.Catalog().LookupTopic("t")
	if _, err := topic.ConfigureAs(t.Context(), "", meta.TopicSettings{QuotaCount: 3}); err != nil {
		t.Fatal(err)
	}
	n.post(t, "/mpub?topic=t", "a\nb\n")
	p := n.dial(t)
	p.Send(nsqtest.Pub("t", "c"))
	p.OK()
	p.Send(nsqtest.Pub("t", "d") + nsqtest.Pub("t", "e"))
	over := &errs.LimitError{
		Err: errs.ErrQuota, What: "with this request the number of the partition's unconfirmed messages", Value: 5, Most: 3,
		Setting: "quota-count", OfTopic: true,
	} // both are one request of the engine
	p.Fatal("E_PUB_FAILED PUB failed " + over.Error())
	p = n.dial(t)
	p.Send("MPUB t\n" + nsqtest.Sized(nsqtest.BatchBody("d", "e")))
	p.Fatal("E_MPUB_FAILED MPUB failed " + over.Error())
	for _, path := range []string{"/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&key=k"} {
		if status, text := n.do(t, "POST", path, "x"); status != 507 ||
			!strings.Contains(text, "messages is 4, and at most 3 is allowed: see the topic's setting quota-count") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if s := n.topicNow(t, "t"); s.MessageCount != 3 {
		t.Errorf("%d messages are stored", s.MessageCount)
	}
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 1\n")
	c.Send("FIN " + c.Message().ID + "\n")
	c.Message()
	nsqtest.Eventually(t, "a finished message makes room", func() bool {
		status, _ := n.do(t, "POST", "/pub?topic=t", "x")
		return status == 200
	})
}

// With little room left on the disk, a publish fails with an error that says so, and consuming continues.
func TestDiskLowWater(t *testing.T) {
	disk := faultaio.New(faultaio.Options{Seed: 1})
	n := startNode(t, node.Options{Disk: disk}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/channel/create?topic=t&channel=c", "")
	n.post(t, "/mpub?topic=t", "a\nb\n")
	free, err := disk.FreeBytes()
	if err != nil {
		t.Fatal(err)
	}
	disk.SetCapacity(faultaio.DefaultCapacityBytes - free + 1<<20)
	nsqtest.Eventually(t, "publishing is off", func() bool {
		status, text := n.do(t, "POST", "/pub?topic=t", "x")
		return status == 503 && strings.Contains(text, "disk is full")
	})
	p := n.dial(t)
	p.Send(nsqtest.Pub("t", "x"))
	p.Fatal("E_PUB_FAILED PUB failed " + errs.ErrNoSpace.Error())
	if status, text := n.do(t, "GET", "/ping", ""); status != 500 || !strings.Contains(text, "disk is full") {
		t.Errorf("/ping: %d %s", status, text)
	}
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 2\n")
	for _, want := range []string{"a", "b"} {
		m := c.Message()
		if m.Body != want {
			t.Errorf("got %q, want %q", m.Body, want)
		}
		c.Send("FIN " + m.ID + "\n")
	}
	disk.SetCapacity(faultaio.DefaultCapacityBytes)
	nsqtest.Eventually(t, "publishing is on again", func() bool {
		status, _ := n.do(t, "POST", "/pub?topic=t", "x")
		return status == 200
	})
}
