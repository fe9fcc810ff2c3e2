package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/inflate"
	"penstock/internal/shares"
	"penstock/segment"
)

// A producer may compress its batches. A few bytes may become millions, and the node must decompress them before it can
// store them. So before it does, a batch says how large it becomes and is refused if that is too much for its size, and
// a large one takes that much of a budget of the node, of which one client has a share. It waits for that for a short
// time. What fits into batch.FreeInflationBytes costs as little as other small messages, and takes nothing.

// Inflation is that budget and the rule. A node has one; NewLimits makes it. Any goroutine may call its methods.
type Inflation struct {
	budget  *shares.Budget
	refused atomic.Uint64
}

// Bytes returns how many bytes batches have become, or become now, that are being verified.
func (f *Inflation) Bytes() int64 { return f.budget.Used() }

// Refused returns how many compressed batches were refused because of their ratio or the budget.
func (f *Inflation) Refused() uint64 { return f.refused.Load() }

// scratches are memory for the records of compressed batches while they are verified, of MaxBatchBytes each at most.
var scratches = sync.Pool{New: func() any { return new([]byte) }}

// measureInflated checks the records of a compressed batch.
func (l *Limits) measureInflated(p *Put, h *segment.Header, body []byte) error {
	now := l.now.Load()
	need, stated, err := l.inflatedBytes(now, h, body)
	if err != nil {
		return err
	}
	if !stated { // as in the frames of what is small; so it is tried as such
		if damaged, err := l.measureWithin(p, h, body, batch.FreeInflationBytes); !damaged {
			return err
		}
	}
	if need > batch.FreeInflationBytes { // before any memory is taken: many may wait here
		if err := l.Inflation.take(now, p, int64(need)); err != nil {
			l.Inflation.refused.Add(1)
			return err
		}
		defer l.Inflation.budget.Give(p.Special.Payer, int64(need))
	}
	damaged, err := l.measureWithin(p, h, body, need)
	if damaged && !stated {
		return l.inflatesTooMuch(now, len(body), fmt.Sprintf("more, or it is damaged (%v)", err))
	}
	return err
}

// measureWithin decompresses a body that becomes need bytes at most, and checks its records. damaged says that it
// cannot be decompressed so.
func (l *Limits) measureWithin(p *Put, h *segment.Header, body []byte, need int) (damaged bool, err error) {
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	records, err := inflate.Batch(h, body, *scratch, need)
	if err != nil {
		return true, refusedBatch(err)
	}
	*scratch = records
	return false, l.measureRecords(p, h, records)
}

// inflatedBytes is how many bytes the body of a batch may become, or why that is refused. stated: it says so itself.
func (l *Limits) inflatedBytes(now *Sizes, h *segment.Header, body []byte) (n int, stated bool, err error) {
	most := batch.MostInflated(len(body), now.MaxInflationRatio)
	n, stated, err = batch.InflatedBytes(h, body)
	switch {
	case err != nil:
		return 0, false, refusedBatch(err)
	case !stated:
		return min(most, now.MaxBatchBytes), false, nil
	case n > most:
		return 0, false, l.inflatesTooMuch(now, len(body), n)
	case n+segment.HeaderBytes > now.MaxBatchBytes:
		return 0, false, now.batchTooBig(n + segment.HeaderBytes)
	}
	return n, true, nil
}

// inflatesTooMuch refuses a body of so many compressed bytes for what it becomes.
func (l *Limits) inflatesTooMuch(now *Sizes, packed int, becomes any) error {
	l.Inflation.refused.Add(1)
	return &errs.LimitError{
		Err: errs.ErrInflation, Value: becomes,
		Most:    min(batch.MostInflated(packed, now.MaxInflationRatio), now.MaxBatchBytes),
		What:    fmt.Sprintf("the size in bytes to which a compressed batch of %d bytes grows", packed),
		Setting: "max-inflation-ratio",
	}
}

// take lets the client of p have n bytes of the budget, or says why not.
func (f *Inflation) take(now *Sizes, p *Put, n int64) error {
	who := p.Special.Payer
	err := f.budget.TryTake(who, n)
	if err == nil {
		return nil
	}
	if !p.NoWait && now.AdmitTimeout > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), now.AdmitTimeout)
		defer cancel()
		if err = f.budget.Take(ctx, who, n); err == nil {
			return nil
		}
	}
	over := &errs.LimitError{
		Err: errs.ErrOverloaded, What: "with this one the size in bytes to which the compressed batches grow that the node " +
			"verifies now", Value: f.budget.Used() + n, Most: now.MaxInflatedBytes, Setting: "max-inflated-bytes",
	}
	if errors.Is(err, shares.ErrShare) {
		over.What += " for this token or address"
		over.Value, over.Most = "more", f.budget.Share()
		over.Setting += ", of which it may have a quarter"
	}
	return over
}

func refusedBatch(why error) error {
	return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: %w", why)
}
