package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/load"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/segment"
)

// What headers cost is measured beside the same bodies without any, and beside messages without headers whose records
// are as long: what is left of the second ratio is not explained by bytes.
const (
	headersCount = 3
	plainBytes   = 100
	headerRounds = 5
)

func threeHeaders() []node.Header {
	out := make([]node.Header, headersCount)
	for i := range out {
		out[i] = node.Header{Key: fmt.Appendf(nil, "header-%03d", i), Value: fmt.Appendf(nil, "%012d", i)}
	}
	return out
}

// kind is what one of the sides publishes.
type kind struct {
	name   string
	record segment.Record
}

func (k *kind) message() node.Outgoing {
	return node.Outgoing{Body: k.record.Body, Headers: k.record.Headers}
}

// kinds are messages with headers, without, and without but of the same size in the log.
func kinds() []*kind {
	body := bytes.Repeat([]byte("x"), plainBytes)
	headers := &kind{"headers", segment.Record{Body: body, Headers: threeHeaders()}}
	plain := &kind{"plain", segment.Record{Body: body}}
	long := &kind{
		"same-bytes", segment.Record{Body: bytes.Repeat([]byte("x"), plainBytes+headers.record.Size()-plain.record.Size())},
	}
	for long.record.Size() > headers.record.Size() { // a longer size has more digits
		long.record.Body = long.record.Body[1:]
	}
	return []*kind{headers, plain, long}
}

// rates are what the sides reached, round by round.
type rates [][]float64

// measureInTurn runs the sides one after the other, again and again.
func measureInTurn(b *testing.B, sides int, run func(side int) float64) rates {
	out := make(rates, sides)
	for range max(b.N, headerRounds) {
		for i := range out {
			out[i] = append(out[i], run(i))
		}
	}
	return out
}

// report gives the medians, and what the first side is of each other one: per message, and for the plain messages per
// byte in the log, too.
func (r rates) report(b *testing.B, all []*kind) {
	b.ReportMetric(0, "ns/op")
	for i, k := range all {
		b.ReportMetric(median(r[i]), k.name+"-msg/s")
		if i == 0 {
			continue
		}
		ratios := make([]float64, len(r[i]))
		for j := range ratios {
			ratios[j] = r[0][j] / r[i][j]
		}
		b.ReportMetric(median(ratios), "headers/"+k.name)
		if k.name == "plain" {
			b.ReportMetric(median(ratios)*float64(all[0].record.Size())/float64(k.record.Size()), "per-byte")
		}
	}
}

// BenchmarkPublishHeaders is the embedded engine: 64 producers that wait, one with 16k on the way, and batches that
// producers sealed.
func BenchmarkPublishHeaders(b *testing.B) {
	ctx, all := context.Background(), kinds()
	b.Run("producers=64", func(b *testing.B) {
		t := topics(b, openEngine(b), 1)[0]
		measureInTurn(b, len(all), func(side int) float64 {
			k := all[side]
			put := func() error { _, err := t.PublishMessage(ctx, k.message()); return err }
			if len(k.record.Headers) == 0 {
				put = func() error { _, err := t.PublishMessage(ctx, node.Outgoing{Body: k.record.Body}); return err }
			}
			rate, _ := round(64, put)
			return rate
		}).report(b, all)
	})
	b.Run("async", func(b *testing.B) {
		t := topics(b, openEngine(b), 1)[0]
		measureInTurn(b, len(all), func(side int) float64 { return submitAsync(b, t, &all[side].record) }).report(b, all)
	})
	b.Run("sealed=256", func(b *testing.B) {
		t := topics(b, openEngine(b), 1)[0]
		batches := make([][]byte, len(all))
		for i, k := range all {
			batches[i] = sealedBatch(b, &k.record)
		}
		measureInTurn(b, len(all), func(side int) float64 {
			rate, _ := round(sealedBatchCount, func() error { _, err := publishSealed(ctx, t, batches[side]); return err })
			return rate * sealedBatchCount
		}).report(b, all)
	})
}

const sealedBatchCount = 256

func sealedBatch(b *testing.B, r *segment.Record) []byte {
	b.Helper()
	var sb batch.Builder
	sb.Reset(segment.CodecNone)
	for range sealedBatchCount {
		if err := sb.Add(r); err != nil {
			b.Fatal(err)
		}
	}
	batch, err := sb.Seal(1)
	if err != nil {
		b.Fatal(err)
	}
	return batch
}

// submitAsync keeps 16k puts of one message on the way for a round's time and returns messages per second.
func submitAsync(b *testing.B, t *node.Topic, r *segment.Record) float64 {
	const inFlight, turn = 16384, 256
	var answered atomic.Int64
	var failed atomic.Pointer[error]
	count, more := int64(0), make(chan struct{}, 1)
	done := func(p *node.Put) { // one at a time, on the committer; it shares its count now and then
		if p.Err != nil {
			failed.Store(&p.Err)
		}
		if count++; count%turn == 0 {
			answered.Store(count)
			select {
			case more <- struct{}{}:
			default:
			}
		}
	}
	bodies, headers := [][]byte{r.Body}, [][]node.Header(nil)
	if len(r.Headers) > 0 {
		headers = [][]node.Header{r.Headers}
	}
	puts := make([]node.Put, inFlight)
	for i := range puts {
		puts[i].Messages, puts[i].Headers, puts[i].Done = bodies, headers, done
	}
	start, sent, seen := time.Now(), int64(0), int64(0)
	for ; sent%turn != 0 || time.Since(start) < roundTime; sent++ {
		for sent-seen >= inFlight {
			if seen = answered.Load(); sent-seen >= inFlight {
				<-more
			}
		}
		if err := t.Submit(&puts[sent%inFlight]); err != nil {
			b.Fatal(err)
		}
	}
	for answered.Load() < sent {
		<-more
	}
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	return float64(sent) / time.Since(start).Seconds()
}

// BenchmarkCatchUpHeaders delivers and confirms what is stored, without a socket; the last side has a filter that lets
// every message pass.
func BenchmarkCatchUpHeaders(b *testing.B) {
	ctx, all := context.Background(), kinds()
	filtered := *all[0]
	filtered.name = "filtered"
	all = append(all, &filtered)
	e := openEngine(b)
	ts := topics(b, e, len(all))
	const stored = 1200 * sealedBatchCount
	for i, k := range all {
		sealed := sealedBatch(b, &k.record)
		for range stored / sealedBatchCount {
			if _, err := publishSealed(ctx, ts[i], sealed); err != nil {
				b.Fatal(err)
			}
		}
	}
	filter := fold.Filter{Rules: []fold.Rule{{Header: "header-001", Match: fold.MatchPrefix, Pattern: "0000"}}}
	n := 0
	measureInTurn(b, len(all), func(side int) float64 {
		n++
		c, err := ts[side].Channel(ctx, fmt.Sprintf("c%d", n))
		if err == nil && side == len(all)-1 {
			settings := c.Settings()
			settings.Filter = filter
			_, err = c.Configure(ctx, settings)
		}
		if err == nil {
			err = c.Seek(ctx, node.SeekTo{Kind: node.SeekID, ID: batch.MakeID(0, 0)})
		}
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		drained := drainChannel(b, c, stored)
		rate := float64(drained) / time.Since(start).Seconds()
		if err := ts[side].DeleteChannel(ctx, c.Name()); err != nil {
			b.Fatal(err)
		}
		return rate
	}).report(b, all)
}

// over is one of kinds over NSQ's protocol: with headers PUB_EXT and MPUB_EXT.
func (k *kind) over(cfg load.Config) load.Config {
	cfg.SizeBytes, cfg.Headers = len(k.record.Body), len(k.record.Headers)
	return cfg
}

// tcpHeaderCases are what is measured over TCP, of one node and of three.
var tcpHeaderCases = []struct {
	name                  string
	conns, inFlight, perM int
}{
	{"PUB/connections=64/in-flight=1", 64, 1, 1},
	{"PUB/connections=1/in-flight=1024", 1, 1024, 1},
	{"MPUBx100/connections=1/in-flight=1", 1, 1, 100},
	{"MPUBx100/connections=8/in-flight=1", 8, 1, 100},
}

// tcpHeaders measures the kinds at one node: publishing, then what a plain NSQ consumer, which gets the bodies, takes
// of a backlog.
func tcpHeaders(b *testing.B, n *served, published, consumed string) {
	all := kinds()
	measure := func(b *testing.B, cfg load.Config, by func(context.Context, load.Config) (*load.Report, error)) {
		measureInTurn(b, len(all), func(side int) float64 {
			r, err := by(context.Background(), all[side].over(cfg))
			if err == nil && r.Errors > 0 {
				err = errors.New(r.FirstError)
			}
			if err != nil {
				b.Fatalf("%s: %v", all[side].name, err)
			}
			return r.MessagesPerSecond
		}).report(b, all)
	}
	for _, v := range tcpHeaderCases {
		b.Run(v.name, func(b *testing.B) {
			cfg := n.config(published)
			cfg.Connections, cfg.InFlight, cfg.Batch = v.conns, v.inFlight, v.perM
			cfg.Duration, cfg.WarmUp = 700*time.Millisecond, 200*time.Millisecond
			measure(b, cfg, load.Publish)
		})
	}
	b.Run("catch-up", func(b *testing.B) {
		cfg := n.config(consumed)
		cfg.Messages, cfg.Fill, cfg.Duration, cfg.WarmUp = 500_000, true, 0, 0
		measure(b, cfg, load.Consume)
	})
}

// BenchmarkTCPPublishHeaders is a node of its own, every OK after a durable write.
func BenchmarkTCPPublishHeaders(b *testing.B) { tcpHeaders(b, startNode(b, b.TempDir()), "t", "u") }

// BenchmarkClusterPublishHeaders is three nodes, every OK after all in-sync replicas have flushed it; the client is at
// the leader.
func BenchmarkClusterPublishHeaders(b *testing.B) {
	tr := startCluster(b, 3)
	leader := tr.create(b, "t").Leader
	for i := range 2 * len(tr.nodes) { // placement spreads leaders
		if u := fmt.Sprintf("u%d", i); tr.create(b, u).Leader == leader {
			tcpHeaders(b, tr.at(leader), "t", u)
			return
		}
	}
	b.Fatalf("no other topic is led by %s", leader)
}

// BenchmarkHTTPPublishHeaders is 64 connections that wait for each answer of /pub.
func BenchmarkHTTPPublishHeaders(b *testing.B) {
	n, all := startNode(b, b.TempDir()), kinds()
	const conns = 64
	client := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: conns}}
	defer client.CloseIdleConnections()
	measureInTurn(b, len(all), func(side int) float64 {
		k := all[side]
		rate, _ := roundOf(time.Second, conns, func() error {
			r, err := http.NewRequest(http.MethodPost, "http://"+n.http+"/pub?topic=t", bytes.NewReader(k.record.Body))
			if err != nil {
				return err
			}
			for _, h := range k.record.Headers {
				r.Header.Set("X-Penstock-Header-"+string(h.Key), string(h.Value))
			}
			resp, err := client.Do(r)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s (%v)", resp.Status, text, err)
			}
			return nil
		})
		return rate
	}).report(b, all)
}

// publishSealed stores a sealed batch, and waits for the answer.
func publishSealed(ctx context.Context, t *node.Topic, batch []byte) (node.ID, error) {
	w := inbox.NewWaiter()
	defer w.Free()
	w.Kind, w.Special, w.Alone, w.Waits = inbox.Sealed, &inbox.Special{Sealed: batch}, true, true
	if err := t.Submit(&w.Put); err != nil {
		return 0, err
	}
	return w.Wait(ctx)
}
