package native

import (
	"crypto/rand"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// packed makes a batch of count bodies that is compressed whatever its ratio is, as no client of this project would do.
// Each body has zeros bytes of nothing, and random bytes of its own.
func packed(t testing.TB, count, zeros, random int) []byte {
	t.Helper()
	var records []byte
	for range count {
		body := make([]byte, zeros+random)
		_, _ = rand.Read(body[zeros:])
		records = batch.AppendRecord(records, &batch.Record{Body: body})
	}
	small := s2.Encode(nil, records)
	h := batch.Header{
		Codec: batch.CodecS2, BodyBytes: uint32(len(small)), Count: uint32(count), Created: 1, BodyCRC: batch.Checksum(small),
	}
	out := make([]byte, batch.HeaderBytes)
	h.Encode(out)
	return append(out, small...)
}

// A hundred bytes that become megabytes are refused before they do, with the limit and the setting.
func TestRatioIsRefused(t *testing.T) {
	w := open(t, nil)
	c := w.dial()
	topic := c.ask(true, "orders").Topics[0].ID
	bomb := packed(t, 5, 1<<20, 0)
	if len(bomb) > 1000 {
		t.Fatalf("%d bytes are no bomb", len(bomb))
	}
	text := c.refusal(c.publish(topic, 0, bomb), wire.TypeProduced, netproto.StatusTooBig).Text
	for _, part := range []string{"5242905", "max-inflation-ratio", "at most"} {
		if !strings.Contains(text, part) {
			t.Errorf("the refusal does not name %q: %s", part, text)
		}
	}
	large := packed(t, 9, 1<<19, 4<<10)
	huge := packed(t, 12, 1<<19, 4<<10)
	text = c.refusal(c.publish(topic, 0, huge), wire.TypeProduced, netproto.StatusTooBig).Text
	if !strings.Contains(text, "max-batch-bytes") {
		t.Errorf("a batch that is larger than one that is not compressed may be: %s", text)
	}
	c.produced(c.publish(topic, 0, large)) // an ordinary one is stored
	if s := w.e.Storage(); s.InflationRefused != 1 || s.InflatingBytes != 0 {
		t.Errorf("%d were refused, want 1; %d bytes are held", s.InflationRefused, s.InflatingBytes)
	}
}

// Many connections of one address that send batches which grow as much as they may hold their share of the memory at
// most, and those of another address wait for no more than what is in it.
func TestInflationIsShared(t *testing.T) {
	const (
		flooders = 32
		bound    = 16 << 20
	)
	w := serveEngine(t, node.Options{
		DataPath: t.TempDir(), Logger: quiet, MaxInflatedBytes: 4 * bound, AdmitTimeout: patience,
	}, nil)
	c := w.dial()
	topic := c.ask(true, "orders").Topics[0].ID
	heavy := packed(t, 5, 1<<20-8<<10, 8<<10)
	stop := make(chan struct{})
	var stored atomic.Int64
	var all sync.WaitGroup
	for range flooders {
		f, err := w.tryFrom("127.0.0.2", nil)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				f.produced(f.publish(topic, 0, heavy))
				stored.Add(1)
			}
		})
	}
	mine := packed(t, 100, 1000, 100)
	var most int64
	var memory runtime.MemStats
	var heap uint64
	slowest := time.Duration(0)
	for end := time.Now().Add(patience); stored.Load() < 4*flooders || most == 0 && time.Now().Before(end); {
		began := time.Now()
		c.produced(c.publish(topic, 0, mine))
		slowest = max(slowest, time.Since(began))
		most = max(most, w.e.Storage().InflatingBytes)
		runtime.ReadMemStats(&memory)
		heap = max(heap, memory.HeapInuse)
	}
	close(stop)
	all.Wait()
	t.Logf("the other client waited for %v at most; %d MiB at once, %d MiB of heap", slowest, most>>20, heap>>20)
	if most > bound+1<<20 || most == 0 {
		t.Errorf("%d bytes were held at once, more than one address may", most)
	}
	if slowest > noticed {
		t.Errorf("another address waited for %v", slowest)
	}
}
