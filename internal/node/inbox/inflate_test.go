package inbox

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"penstock/batch"
	"penstock/internal/node/errs"
)

// sealedAs makes a batch out of a body that is compressed already.
func sealedAs(codec batch.Codec, count int, body []byte) *Put {
	h := batch.Header{
		Codec: codec, BodyBytes: uint32(len(body)), Count: uint32(count), Created: 1, BodyCRC: batch.Checksum(body),
	}
	out := make([]byte, batch.HeaderBytes)
	h.Encode(out)
	p := new(Put)
	p.Kind, p.Special = Sealed, &Special{Sealed: append(out, body...)}
	return p
}

// A zstd frame that does not say how large it becomes, or that is followed by another one, stays within the limits.
func TestInflationOfFrames(t *testing.T) {
	l := NewLimits(Sizes{MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxHeaderBytes: 1 << 16})
	record := batch.AppendRecord(nil, &batch.Record{Body: make([]byte, 400<<10)})
	stated, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	stream, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.Flush(), stream.Close()); err != nil {
		t.Fatal(err)
	}
	small := batch.AppendRecord(nil, &batch.Record{Body: []byte("x")})
	middle := batch.AppendRecord(nil, &batch.Record{Body: make([]byte, 1000)})
	for _, c := range []struct {
		name string
		body []byte
		n    int
		want error
	}{
		{"its size is stated", stated.EncodeAll(record, nil), 1, errs.ErrInflation},
		{"its size is not stated", []byte(b.String()), 1, errs.ErrInflation},
		{"another frame follows", stated.EncodeAll(record, stated.EncodeAll(middle, nil)), 2, batch.ErrInvalid},
		{
			"another frame follows one without a size", stated.EncodeAll(record, stated.EncodeAll(small, nil)), 2,
			errs.ErrInflation,
		},
		{"small", stated.EncodeAll(small, nil), 1, nil},
	} {
		if err := l.Measure(sealedAs(batch.CodecZstd, c.n, c.body)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if !errors.Is(errs.ErrInflation, errs.ErrBatchTooBig) {
		t.Error("it is no ErrBatchTooBig")
	}
}

// A batch waits for its client's share as long as the limit says, and is refused by name; a node's put does not wait.
func TestInflationWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimits(Sizes{
			MaxBatchBytes: 1 << 20, MaxInflationRatio: 1, MaxInflatedBytes: 4 << 20, AdmitTimeout: time.Second,
		})
		take := func(who string, n int64, noWait bool) error {
			return l.Inflation.take(l.now.Load(), &Put{NoWait: noWait, state: state{Special: &Special{Payer: who}}}, n)
		}
		if err := take("a", 1<<20, false); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := take("a", 1, false)
		if took := time.Since(began); took != time.Second || !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("after %v: %v", took, err)
		}
		for _, part := range []string{"token or address", "1048576", "max-inflated-bytes"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
		began = time.Now()
		if err := take("a", 1, true); !errors.Is(err, errs.ErrOverloaded) || time.Since(began) != 0 {
			t.Errorf("without waiting: %v", err)
		}
		go func() {
			time.Sleep(time.Second / 2)
			l.Inflation.budget.Give("a", 1<<20)
		}()
		if err := take("a", 1<<20, false); err != nil {
			t.Error(err)
		}
	})
}

// Batches that wait for the budget hold no memory for what they become.
func TestInflationWaitsWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimits(Sizes{
			MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxInflationRatio: 1 << 20, MaxInflatedBytes: 1 << 20,
			AdmitTimeout: time.Second,
		})
		if err := l.Inflation.budget.TryTake("a", 1<<20); err != nil {
			t.Fatal(err)
		}
		var made atomic.Int64
		fresh := scratches.New
		scratches.New = func() any { made.Add(1); return fresh() }
		defer func() { scratches.New = fresh }()
		body := s2.Encode(nil, batch.AppendRecord(nil, &batch.Record{Body: make([]byte, 500<<10)}))
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := l.Measure(sealedAs(batch.CodecS2, 1, body)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := made.Load(); n > 0 {
			t.Errorf("%d of 50 batches that wait hold memory", n)
		}
		l.Inflation.budget.Give("a", 1<<20)
		all.Wait()
	})
}
