package server

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/statsd"
	"penstock/tests/support/patience"
)

// A node pushes what was published since the last push, over UDP, in packets of the size that is set.
func TestStatsdPushes(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	n := startNode(t, node.Options{}, Options{Statsd: statsd.Options{
		Address: conn.LocalAddr().String(), Prefix: "x", Interval: 50 * time.Millisecond, MemStats: true, PacketBytes: 100,
	}})
	n.post(t, "/mpub?topic=t", "a\nb\nc")
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	total, mem, buf := 0, false, make([]byte, 4096)
	for total < 3 || !mem {
		size, _, err := conn.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%d messages, memory %v: %v", total, mem, err)
		}
		if size > 100 {
			t.Errorf("a packet of %d bytes", size)
		}
		for line := range strings.Lines(string(buf[:size])) {
			count := 0
			if _, err := fmt.Sscanf(line, "x.topic.t.message_count:%d|c\n", &count); err == nil {
				total += count
			}
			mem = mem || strings.HasPrefix(line, "x.mem.heap_objects:")
		}
	}
	if total != 3 {
		t.Errorf("the pushes add up to %d messages", total)
	}

	second, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	o := n.Server.opts
	o.Statsd.Address, o.Statsd.Prefix = second.LocalAddr().String(), "y"
	if err := n.Server.Change(o); err != nil {
		t.Fatal(err)
	}
	_ = second.SetReadDeadline(time.Now().Add(patience.Or(10 * time.Second)))
	if size, _, err := second.ReadFrom(buf); err != nil || !strings.HasPrefix(string(buf[:size]), "y.") {
		t.Errorf("at the new address: %q, %v", buf[:size], err)
	}
}
