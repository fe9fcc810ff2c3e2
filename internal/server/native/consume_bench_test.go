package native

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// drain is a client that only counts: it walks each Deliver, finishes through its last delivery and gives the credit
// back.
type drain struct {
	c    *netproto.Conn
	it   wire.Deliveries
	head []byte
	most uint32 // messages in flight
	left int
	done chan struct{}
}

func (d *drain) Frames(c *netproto.Conn, frames []netproto.Received) error {
	for i := range frames {
		f := &frames[i]
		if f.Type != wire.TypeDeliver {
			continue
		}
		if err := d.it.Reset(f.Payload); err != nil {
			return err
		}
		last := uint64(0)
		for m := d.it.Next(); m != nil; m = d.it.Next() {
			last = m.ID
		}
		d.left -= d.it.Count
		d.head = wire.Append(d.head[:0], &wire.FinishThrough{Number: d.it.First + uint64(d.it.Count) - 1, ID: last})
		if err := c.TrySend(&netproto.Frame{Type: wire.TypeFinishThrough, Request: f.Request, Head: d.head}); err != nil {
			return err
		}
		d.head = wire.Append(d.head[:0], &wire.Credit{Messages: d.most, Bytes: uint32(len(f.Payload))})
		if err := c.TrySend(&netproto.Frame{Type: wire.TypeCredit, Request: f.Request, Head: d.head}); err != nil {
			return err
		}
		if d.left == 0 {
			close(d.done)
		}
	}
	return nil
}

func (d *drain) Closed(*netproto.Conn, error) {}

// One operation is one message of 100 bytes, from the topic to a client over loopback, which finishes frame by frame.
func BenchmarkConsume(b *testing.B) {
	for _, most := range []uint32{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint("in flight=", most), func(b *testing.B) { benchmarkConsume(b, most) })
	}
}

func benchmarkConsume(b *testing.B, most uint32) {
	w := open(b, nil)
	topic, err := w.e.CreateTopic(b.Context(), "orders", 1)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := topic.Channel(b.Context(), "c"); err != nil {
		b.Fatal(err)
	}
	ms := make([]node.Outgoing, 1000)
	for i := range ms {
		ms[i].Body = bytes.Repeat([]byte("x"), 100)
	}
	for left := b.N; left > 0; left -= len(ms) {
		if _, err := topic.PublishMessages(b.Context(), ms[:min(left, len(ms))]); err != nil {
			b.Fatal(err)
		}
	}
	nc, err := net.Dial("tcp", w.s.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	d := &drain{most: most, left: b.N, done: make(chan struct{})}
	o := netproto.Options{Hello: clientHello(), Handler: d}
	if d.c, err = netproto.Connect(context.Background(), nc, o); err != nil {
		b.Fatal(err)
	}
	defer d.c.Abort(nil)
	m := &wire.Subscribe{
		Topic: topic.ID(), Channel: "c", From: wire.FromDefault, Partition: wire.NoPartition, Messages: most, Bytes: 8 << 20,
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	if err := d.c.TrySend(&netproto.Frame{Type: wire.TypeSubscribe, Request: 1, Head: wire.Append(nil, m)}); err != nil {
		b.Fatal(err)
	}
	<-d.done
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") // of node and client together
}

// cpuTime is what the process has used of all processors, in ns. Unlike the elapsed time it hardly depends on what
// else the machine does.
func cpuTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
