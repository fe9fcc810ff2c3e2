package main

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/native/wire"
	"penstock/netproto"
)

// signpost is a node without data: it accepts every token, and says that another machine leads every topic. A real
// cluster over two machines is not at hand here.
type signpost struct{ leader string }

func (s *signpost) Closed(*netproto.Conn, error) {}

func (s *signpost) Frames(c *netproto.Conn, frames []netproto.Received) error {
	for i := range frames {
		answer := netproto.Frame{Type: frames[i].Type + 1, Request: frames[i].Request}
		switch frames[i].Type {
		case wire.TypeAuth:
			answer.Head = new(wire.Outcome).AppendTo(nil)
		case wire.TypeMetadata:
			var asked wire.MetadataRequest
			if err := asked.Decode(frames[i].Payload); err != nil {
				return err
			}
			m := wire.Metadata{Revision: 1, Nodes: []wire.Node{{Name: "far", Address: s.leader}}}
			for _, name := range asked.Topics {
				m.Topics = append(m.Topics, wire.Topic{Name: name, ID: uuid.UUID{1}, Partitions: make([]wire.Partition, 1)})
			}
			answer.Head = m.AppendTo(nil)
		default:
			continue
		}
		if err := c.TrySend(&answer); err != nil {
			return err
		}
	}
	return nil
}

// The token is not sent in clear to a machine that only the cluster names, either: the command ends and says so.
func TestTokenIsNotSentToLearnedAddresses(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- netproto.Serve(ctx, ln, netproto.Options{
			Hello: netproto.Hello{
				Role: netproto.RoleNode, NodeID: "n", Cluster: netproto.ID{1}, Store: netproto.ID{2}, Boot: netproto.ID{3},
				MinVersion: 1, MaxVersion: 1,
			},
			Handler: &signpost{leader: "192.0.2.1:4250"}, CloseTimeout: 100 * time.Millisecond,
		}, 100, nil)
	}()
	defer func() {
		cancel()
		<-served
	}()
	t.Setenv("PENSTOCK_TOKEN", "secret")
	for _, args := range [][]string{
		{"read", "t"},
		{"read", "t", "--follow"},
		{"sub", "t", "c"},
		{"sub", "t", "c", "--count", "3"},
		{"pub", "t"},
		{"pub", "t", "--producer", "p"},
	} {
		began := time.Now()
		o := feed(t, "a message", append(args, "--nodes", ln.Addr().String())...)
		o.check(t, exitUsage, "the connection to 192.0.2.1 has no TLS")
		if took := time.Since(began); took > 20*time.Second || t.Failed() {
			t.Fatalf("%q: after %v", args, took)
		}
	}
}
