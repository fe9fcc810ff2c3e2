package server

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// BenchmarkPublishPipelined measures one connection that pipelines 1000 PUBs at a time. An operation is one message.
func BenchmarkPublishPipelined(b *testing.B) {
	n := startNode(b, node.Options{}, Options{})
	c := n.dial(b)
	const count = 1000
	in := []byte(strings.Repeat(nsqtest.Pub("t", strings.Repeat("x", 100)), count))
	b.ReportAllocs()
	b.SetBytes(100)
	b.ResetTimer()
	done := make(chan error, 1)
	rounds := (b.N + count - 1) / count
	go func() {
		_, err := io.CopyN(io.Discard, c.Conn, int64(rounds*count*nsqtest.OKFrameBytes))
		done <- err
	}()
	for range rounds {
		if _, err := c.Conn.Write(in); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPublishOne measures the latency of single PUBs, each with a write and a flush.
func BenchmarkPublishOne(b *testing.B) {
	n := startNode(b, node.Options{}, Options{})
	c := n.dial(b)
	in := []byte(nsqtest.Pub("t", strings.Repeat("x", 100)))
	var answer [nsqtest.OKFrameBytes]byte
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Conn.Write(in); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c.Conn, answer[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConsume delivers a backlog to one connection that confirms each message. An operation is one message.
func BenchmarkConsume(b *testing.B) {
	n := startNode(b, node.Options{}, Options{})
	p := n.dial(b)
	const batch = 1000
	var bodies []string
	for range batch {
		bodies = append(bodies, strings.Repeat("x", 100))
	}
	in := "MPUB t\n" + nsqtest.Sized(nsqtest.BatchBody(bodies...))
	rounds := (b.N + batch - 1) / batch
	for range rounds {
		p.Send(in)
		p.OK()
	}
	c := n.dial(b)
	c.Sub("t", "c")
	b.ReportAllocs()
	b.SetBytes(100)
	b.ResetTimer()
	c.Send("RDY 2500\n")
	const frameBytes = nsqtest.FrameHeaderBytes + nsqtest.MessageHeaderBytes + 100
	buf := make([]byte, 0, 512<<10)
	fins := make([]byte, 0, 256<<10)
	for got := 0; got < rounds*batch; {
		k, err := c.Conn.Read(buf[len(buf):cap(buf)])
		if err != nil {
			b.Fatal(err)
		}
		buf = buf[:len(buf)+k]
		at := 0
		fins = fins[:0]
		for ; len(buf)-at >= frameBytes; at += frameBytes {
			fins = append(fins, "FIN "...)
			fins = append(fins, buf[at+nsqtest.FrameHeaderBytes+10:at+nsqtest.FrameHeaderBytes+26]...)
			fins = append(fins, '\n')
			got++
		}
		buf = buf[:copy(buf, buf[at:])]
		if _, err := c.Conn.Write(fins); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMPUB measures one connection that publishes 100 messages of 100 bytes at a time, with 16 such batches in
// flight, both plain and wrapped in TLS or compression. An operation is one message. Compare only the variants of one
// run.
func BenchmarkMPUB(b *testing.B) {
	ca := nsqtest.NewAuthority(b)
	for _, x := range []struct {
		name        string
		tls         bool
		compression string
	}{
		{"plain", false, ""},
		{"tls", true, ""},
		{"snappy", false, "snappy"},
		{"deflate", false, "deflate"},
		{"tls+snappy", true, "snappy"},
	} {
		b.Run(x.name, func(b *testing.B) {
			n := startNode(b, node.Options{}, tlsOptions(b, ca))
			var cfg *tls.Config
			if x.tls {
				cfg = ca.Client(b, "")
			}
			publishBatches(b, n.dial(b).Wrap(cfg, x.compression, 6))
		})
	}
}

func publishBatches(b *testing.B, c *nsqtest.Client) {
	const batch, ahead = 100, 16
	bodies := make([]string, batch)
	for i := range bodies {
		noise := sha256.Sum256([]byte{byte(i)})
		bodies[i] = fmt.Sprintf("message %d of an order, number %d, with some text that %x", i, i*7919, noise)[:100]
	}
	in := "MPUB t\n" + nsqtest.Sized(nsqtest.BatchBody(bodies...))
	rounds := (b.N + batch - 1) / batch
	credit := make(chan struct{}, ahead)
	done := make(chan error, 1)
	go func() {
		answer := make([]byte, nsqtest.OKFrameBytes)
		for range rounds {
			if _, err := io.ReadFull(c.R, answer); err != nil {
				done <- err
				return
			}
			<-credit
		}
		done <- nil
	}()
	b.ReportAllocs()
	b.SetBytes(100)
	b.ResetTimer()
	for range rounds {
		credit <- struct{}{}
		c.Send(in)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
