package node_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"penstock/batch"
	"penstock/client"
	"penstock/internal/node"
	"penstock/internal/server/native"
)

// leadersPart is where the fields of a batch's header begin that the leader fills in: see batch/FORMAT.md.
const leadersPart = 48

// tap is a listener that keeps all bytes that clients send.
type tap struct {
	net.Listener
	mu    sync.Mutex
	conns []*tapped
}

type tapped struct {
	net.Conn
	mu  sync.Mutex
	got []byte
}

func newTap(t *testing.T) *tap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &tap{Listener: ln}
}

func (l *tap) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &tapped{Conn: nc}
	l.mu.Lock()
	l.conns = append(l.conns, c)
	l.mu.Unlock()
	return c, nil
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.got = append(c.got, p[:n]...)
	c.mu.Unlock()
	return n, err
}

// has says whether a client has sent these bytes in one piece.
func (l *tap) has(p []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.mu.Lock()
		found := bytes.Contains(c.got, p)
		c.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}

// serve serves native clients of an engine until the test ends or stop is called.
func (l *tap) serve(t *testing.T, e *node.Engine) (stop func()) {
	t.Helper()
	s, err := native.Listen(e, native.Options{Listener: l, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// codecs are the ways in which a producer stores bodies, and how a batch's header says so.
var codecs = map[batch.Codec]client.Compression{
	batch.CodecNone: client.CompressNone, batch.CodecS2: client.CompressS2, batch.CodecZstd: client.CompressZstd,
}

const perCodec = 4000 // messages, in batches of at most 4 KiB as the producer counts them

// produceEach has a producer for each codec publish to t/0, with keys and headers.
func produceEach(t *testing.T, seeds []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := client.Dial(ctx, seeds, client.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	for codec, compression := range codecs {
		p, err := c.Producer(ctx, "t", client.ProducerOptions{
			Name: fmt.Sprint("codec", codec), Compression: compression, MaxBatchBytes: 4096,
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range perCodec {
			m := &client.Message{Body: bytes.Repeat(fmt.Appendf(nil, "%d ", i), 1+rng.IntN(60))}
			if i%3 == 0 {
				m.Key = fmt.Append(nil, i)
				m.Headers = []client.Header{{Key: []byte("n"), Value: fmt.Append(nil, i)}}
			}
			p.Produce(ctx, m, func(_ *client.Message, _ client.ID, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// checkAsSealed checks that a copy's batches of messages are, byte for byte, what producers sent to one of the taps,
// except for the leader's part of the header. With that part as it was before a leader stamped it, the whole batch must
// be among the bytes that came over the sockets.
func checkAsSealed(t *testing.T, who string, c *node.Copy, taps []*tap) {
	t.Helper()
	messages := map[batch.Codec]int{}
	batches, rest := 0, c.Bytes
	for len(rest) > 0 {
		var h batch.Header
		if err := h.Decode(rest); err != nil {
			t.Fatal(err)
		}
		whole := rest[:h.Size()]
		if rest = rest[h.Size():]; h.Control() {
			continue
		}
		batches++
		messages[h.Codec] += int(h.Count)
		sealed := append([]byte(nil), whole...)
		clear(sealed[leadersPart:batch.HeaderBytes])
		unstamped := h
		unstamped.Position, unstamped.FirstID, unstamped.Epoch = 0, 0, 0
		unstamped.Appended, unstamped.PrevCRC = 0, 0
		unstamped.Encode(sealed) // with its checksum
		if !bytes.Equal(sealed[:leadersPart], whole[:leadersPart]) {
			t.Fatalf("%s: the header %+v is encoded otherwise than it is stored", who, h)
		}
		sent := false
		for _, l := range taps {
			sent = sent || l.has(sealed)
		}
		if !sent {
			t.Errorf("%s: nobody sent batch %d as it is stored: %+v", who, h.Position, h)
		}
	}
	total := 0
	for codec := range codecs {
		// A message that leaves alone, because nothing came behind it, may be smaller as it is.
		if total += messages[codec]; messages[codec] < perCodec*9/10 {
			t.Errorf("%s: %d messages with codec %d are stored, want nearly %d", who, messages[codec], codec, perCodec)
		}
	}
	if total != perCodec*len(codecs) {
		t.Errorf("%s: %d messages are stored, want %d", who, total, perCodec*len(codecs))
	}
	if batches < 3*20 || c.Segments < 2 {
		t.Errorf("%s: %d batches are stored in %d segments: this tests little", who, batches, c.Segments)
	}
}

// What a native producer seals is what lies in the log, on one node and after a power cut.
func TestStoredAsSealed(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	channelOf(t, topicOf(t, e, "t"), "c") // what nobody confirmed stays
	l := newTap(t)
	stop := l.serve(t, e)
	produceEach(t, []string{l.Addr().String()})
	check := func(when string) {
		t.Helper()
		c, err := node.CopyOf(e, "t", 0)
		if err != nil {
			t.Fatal(err)
		}
		checkAsSealed(t, when, &c, []*tap{l})
	}
	check("in use")
	left := disk.Crash(7)
	stop()
	_ = e.Close()
	e = openOnDisk(t, left)
	check("after a power cut")
}

// On three nodes, the leader's log and those of the followers have what a native producer sealed, before and after all
// of them lost power.
func TestClusterStoresAsSealed(t *testing.T) {
	t.Parallel()
	taps := map[string]*tap{}
	tc := prepareTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Node.Native = taps[o.NodeID].Addr().String()
	})
	var all []*tap
	var seeds []string
	for _, m := range tc.nodes {
		l := newTap(t)
		all, seeds, taps[m.name] = append(all, l), append(seeds, l.Addr().String()), l
	}
	tc.startAll()
	tc.create("t", 1)
	tc.channel("t", "c") // what nobody confirmed stays
	tc.awaitLevel()
	var stops []func()
	for _, m := range tc.nodes {
		stops = append(stops, taps[m.name].serve(t, m.e))
	}
	produceEach(t, seeds)
	check := func(when string) {
		t.Helper()
		tc.awaitEqualCopies("t", 0)
		for _, m := range tc.nodes {
			c, err := node.CopyOf(m.e, "t", 0)
			if err != nil {
				t.Fatal(err)
			}
			checkAsSealed(t, m.name+" "+when, &c, all)
		}
	}
	check("in use")
	for _, stop := range stops {
		stop()
	}
	tc.killAll()
	tc.startAll()
	check("after all were killed")
}
