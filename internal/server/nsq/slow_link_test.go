package nsq

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/linktest"
	"penstock/tests/support/nsqtest"
)

// A link that is slow but steady is no dead client: the deadline moves with what the socket takes, heartbeats pass the
// messages that wait, and no message waits so long that it is delivered again.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	const rate, count, size = 24 << 10, 16, 20 << 10
	link := linktest.New(t, rate)
	var n *testNode
	link.OnServer(func() {
		n = startNode(t, node.Options{}, Settings{WriteTimeout: 2 * time.Second}, func(o *Options) {
			_ = o.Listener.Close()
			ln, err := net.Listen("tcp", linktest.ServerIP+":0")
			if err != nil {
				t.Fatal(err)
			}
			o.Listener = ln.(*net.TCPListener)
		})
	})
	topic, err := n.e.Topic(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	for range count {
		if _, err := topic.PublishMessage(context.Background(), node.Outgoing{
			Body: []byte(strings.Repeat("m", size)),
		}); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := link.Dial(n.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := nsqtest.New(t, nc)
	c.Send(magic)
	c.Identify(`{"heartbeat_interval":1000,"msg_timeout":10000}`)
	c.Sub("t", "c")
	c.Send("RDY 2500\n")
	beats, got := 0, 0
	for last := time.Now(); got < count; {
		kind, data, err := c.Frame(nsqtest.Patience)
		switch {
		case err != nil:
			t.Fatalf("after %d messages and %d heartbeats: %v", got, beats, err)
		case kind == frameMessage:
			if data[9] != 1 {
				t.Errorf("message %d: attempt %d", got, data[9])
			}
			got++
			c.Send("FIN " + string(data[10:26]) + "\n")
		case string(data) == "_heartbeat_":
			c.Send("NOP\n")
			if late := time.Since(last); late > 8*time.Second {
				t.Errorf("a heartbeat after %v", late)
			}
			last = time.Now()
			beats++
		default:
			t.Fatalf("frame %d %q", kind, data)
		}
	}
	if beats < 3 {
		t.Errorf("%d heartbeats", beats)
	}
}

func TestOutputBound(t *testing.T) {
	const most = 256 << 10
	for _, test := range []struct {
		name   string
		bound  int
		bytes  int
		took   time.Duration
		queued int
		want   int
	}{
		{"a quick link", 32 << 10, 32 << 10, time.Millisecond, 0, 64 << 10},
		{"as quick as it gets", most, most, time.Millisecond, 0, most},
		{"the kernel took it, and the link has not", 32 << 10, 32 << 10, time.Millisecond, 30 << 10, 32 << 10},
		{"100 KiB/s", most, 200 << 10, 2 * time.Second, 0, 100 << 10},
		{"8 KiB/s", 32 << 10, 32 << 10, 4 * time.Second, 0, minOutputBytes},
		{"a stop never lets it grow", 32 << 10, 1 << 20, time.Second, 0, 32 << 10},
		{"a limit below the least", 4096, 4096, 4 * time.Second, 0, 4096},
	} {
		if got := outputBound(test.bound, most, test.bytes, test.took, test.queued); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

func TestProgress(t *testing.T) {
	var p progress
	for i, step := range []struct {
		acked uint64
		wrote bool
		still int
	}{
		{1000, false, 1}, // nobody knows yet whether that is progress
		{1001, false, 0},
		{1001, true, 0},
		{1001, false, 1},
		{1001, false, 2},
	} {
		if p.moves(step.acked, step.wrote); p.still != step.still {
			t.Errorf("step %d: %d, want %d", i, p.still, step.still)
		}
	}
}

// A heartbeat goes before messages that no owner has taken yet, and there is never more than one.
func TestBeatGoesFirst(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Sub("t", "c")
	o := &n.onlyConn(t).out
	nsqtest.Eventually(t, "the output is idle", o.acquire)
	o.appendOKs(2)
	o.beat()
	o.beat()
	o.release(nil)
	c.Expect(frameResponse, "_heartbeat_")
	c.OK()
	c.OK()
	c.Silent(20 * time.Millisecond)
	if !o.allSent() {
		t.Errorf("%d bytes are left", o.unsent)
	}
}
