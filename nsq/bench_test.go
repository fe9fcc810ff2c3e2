package nsq

import (
	"io"
	"strings"
	"testing"

	"penstock/engine"
)

// BenchmarkPublishPipelined is one connection with 1000 PUBs on the way at a time; an operation is one message.
func BenchmarkPublishPipelined(b *testing.B) {
	n := startNode(b, engine.Options{}, Options{})
	c := n.dial(b)
	const count = 1000
	in := []byte(strings.Repeat(pub("t", strings.Repeat("x", 100)), count))
	b.ReportAllocs()
	b.SetBytes(100)
	b.ResetTimer()
	done := make(chan error, 1)
	rounds := (b.N + count - 1) / count
	go func() {
		_, err := io.CopyN(io.Discard, c.nc, int64(rounds*count*okFrameBytes))
		done <- err
	}()
	for range rounds {
		if _, err := c.nc.Write(in); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPublishOne is the latency of one PUB at a time: a write and a flush each.
func BenchmarkPublishOne(b *testing.B) {
	n := startNode(b, engine.Options{}, Options{})
	c := n.dial(b)
	in := []byte(pub("t", strings.Repeat("x", 100)))
	var answer [okFrameBytes]byte
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.nc.Write(in); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c.nc, answer[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConsume delivers a backlog to one connection that confirms each message; an operation is one message.
func BenchmarkConsume(b *testing.B) {
	n := startNode(b, engine.Options{}, Options{})
	p := n.dial(b)
	const batch = 1000
	var bodies []string
	for range batch {
		bodies = append(bodies, strings.Repeat("x", 100))
	}
	in := "MPUB t\n" + sized(batchBody(bodies...))
	rounds := (b.N + batch - 1) / batch
	for range rounds {
		p.send(in)
		p.ok()
	}
	c := n.dial(b)
	c.sub("t", "c")
	b.ReportAllocs()
	b.SetBytes(100)
	b.ResetTimer()
	c.send("RDY 2500\n")
	const frameBytes = frameHeaderBytes + messageHeaderBytes + 100
	buf := make([]byte, 0, 2*maxReadBytes)
	fins := make([]byte, 0, maxReadBytes)
	for got := 0; got < rounds*batch; {
		k, err := c.nc.Read(buf[len(buf):cap(buf)])
		if err != nil {
			b.Fatal(err)
		}
		buf = buf[:len(buf)+k]
		at := 0
		fins = fins[:0]
		for ; len(buf)-at >= frameBytes; at += frameBytes {
			fins = append(fins, "FIN "...)
			fins = append(fins, buf[at+frameHeaderBytes+10:at+frameHeaderBytes+26]...)
			fins = append(fins, '\n')
			got++
		}
		buf = buf[:copy(buf, buf[at:])]
		if _, err := c.nc.Write(fins); err != nil {
			b.Fatal(err)
		}
	}
}
