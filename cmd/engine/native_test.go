package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// signpost is a node without data: it accepts every token, and says that another machine leads every topic. A real
// cluster over two machines is not at hand here.
type signpost struct {
	leader string
	broken string // why it ends each reader; empty: it answers none
}

func (s *signpost) Closed(*netproto.Conn, error) {}

func (s *signpost) Frames(c *netproto.Conn, frames []netproto.Received) error {
	for i := range frames {
		answer := netproto.Frame{Type: frames[i].Type + 1, Request: frames[i].Request}
		switch frames[i].Type {
		case wire.TypeAuth:
			answer.Head = wire.Append(nil, new(wire.Outcome))
		case wire.TypeMetadata:
			var asked wire.MetadataRequest
			if err := wire.Decode(frames[i].Payload, &asked); err != nil {
				return err
			}
			m := wire.Metadata{Revision: 1, Nodes: []wire.Node{{Name: "far", Address: s.leader}}}
			for _, name := range asked.Topics {
				m.Topics = append(m.Topics, wire.Topic{Name: name, ID: uuid.UUID{1}, Partitions: make([]wire.Partition, 1)})
			}
			answer.Head = wire.Append(nil, &m)
		case wire.TypeRead:
			if s.broken == "" {
				continue
			}
			answer.Type, answer.Status = wire.TypeReadEnd, netproto.StatusInternal
			answer.Head = wire.Append(nil, &wire.Outcome{Text: s.broken})
		default:
			continue
		}
		if err := c.TrySend(&answer); err != nil {
			return err
		}
	}
	return nil
}

// startSignpost starts a signpost, and returns its address.
func startSignpost(t *testing.T, leader string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return serveSignpost(t, ln, &signpost{leader: leader})
}

func serveSignpost(t *testing.T, ln net.Listener, s *signpost) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- netproto.Serve(ctx, ln, netproto.Options{
			Hello: netproto.Hello{
				Role: netproto.RoleNode, NodeID: "n", Cluster: netproto.ID{1}, Store: netproto.ID{2}, Boot: netproto.ID{3},
				MinVersion: 1, MaxVersion: 1,
			},
			Handler: s, CloseTimeout: 100 * time.Millisecond,
		}, func() int { return 100 }, nil)
	}()
	t.Cleanup(func() {
		cancel()
		<-served
	})
	return ln.Addr().String()
}

// Commands that can reach nothing of what the cluster announces end, and say who announces what: a script would wait
// for ever.
func TestNothingAnnouncedIsReached(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, nobody.Close())
	node := startSignpost(t, nobody.Addr().String())
	for _, args := range [][]string{{"read", "t"}, {"read", "t", "--follow"}, {"sub", "t", "c"}, {"pub", "t"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			o := feed(t, "a message", append(args, "--nodes", node)...)
			o.check(t, cli.ExitOther, "node far announces "+nobody.Addr().String()+" (told by the node at "+node+"), which "+
				"cannot")
			o.check(t, cli.ExitOther, "--broadcast-address")
		})
	}
	feed(t, "", "pub", "t", "--nodes", node, "--dial", "x=y").check(t, cli.ExitUsage, "is not ANNOUNCED=HOST:PORT")
}

// A node behind a forwarded port announces what cannot be dialed from here: --dial says where it is, and the node says
// at its start that its certificate does not cover what it announces.
func TestDialWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	cert, key := writeCertificate(t, t.TempDir(), "x")
	base := freeBasePort(t)
	at := fmt.Sprintf("127.0.0.1:%d", base+devcluster.PortPeer)
	args := []string{
		"--node-id", "n1", "--cluster-address", at, "--cluster-peers", "n1=" + at, "--replicas", "1",
		"--broadcast-address", "192.0.2.1", "--native-address", fmt.Sprintf("0.0.0.0:%d", base),
	}
	dir := filepath.Join(t.TempDir(), "data")
	p := startNode(t, dir, append(args, "--tls-cert", cert, "--tls-key", key)...)
	p.waitLog(t, "is not for 192.0.2.1, which this node announces")
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("it ends with %d", code)
	}
	p = startNode(t, dir, args...)
	if strings.Contains(p.log.String(), "is not for") {
		t.Errorf("without a certificate:\n%s", p.log)
	}
	seed, announced := fmt.Sprintf("127.0.0.1:%d", base), fmt.Sprintf("192.0.2.1:%d", base)
	o := feed(t, "a message", "pub", "t", "--nodes", seed, "--dial", announced+"="+seed)
	if o.code != 0 {
		t.Errorf("%+v", o)
	}
	o = feed(t, "", "read", "t", "--nodes", seed, "--dial", announced+"="+seed)
	if o.code != 0 || !strings.Contains(o.stdout, "a message") {
		t.Errorf("%+v", o)
	}
}

// What the leader says of a place that it cannot read reaches whoever reads, with the way behind that place.
func TestReadSaysWhatTheLeaderSaid(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	node := serveSignpost(t, ln, &signpost{leader: ln.Addr().String(), broken: "segment 7 is damaged at byte 4711"})
	o := feed(t, "", "read", "t", "--nodes", node)
	o.check(t, cli.ExitOther, "segment 7 is damaged at byte 4711")
	o.check(t, cli.ExitOther, "--from")
}

// The token is not sent in clear to a machine that only the cluster names, either: the command ends and says so.
func TestTokenIsNotSentToLearnedAddresses(t *testing.T) {
	node := startSignpost(t, "192.0.2.1:4250")
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
		o := feed(t, "a message", append(args, "--nodes", node)...)
		o.check(t, cli.ExitUsage, "the connection to 192.0.2.1 has no TLS")
		if took := time.Since(began); took > 20*time.Second || t.Failed() {
			t.Fatalf("%q: after %v", args, took)
		}
	}
}

// What listens for the NSQ protocol is no address for commands that ask over HTTP.
func TestHTTPAddressIsWrong(t *testing.T) {
	plain := startNode(t, t.TempDir())
	o := execute(t, "topic", "list", "--http-address", plain.nsq)
	o.check(t, cli.ExitUsage, "does not speak HTTP: name the HTTP address of a node")
}
