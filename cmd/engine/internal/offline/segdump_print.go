package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"penstock/internal/node/fold"
	"penstock/segment"
)

// segmentDumper shows one file.
type segmentDumper struct {
	segmentOptions
	out     io.Writer
	enc     *json.Encoder
	name    string
	head    segmentHeader
	scratch []byte
}

// osFile reads a file without the data directory around it: a copy from a backup can be dumped too.
type osFile struct{ *os.File }

func (f osFile) ReadAt(p []byte, off int64) error {
	_, err := f.File.ReadAt(p, off)
	return err
}

// segmentLine is one line of JSON. Kind says which of the others is set.
type segmentLine struct {
	Kind    string         `json:"kind"` // segment, batch, record, control, end
	File    string         `json:"file"`
	Segment *segmentHeader `json:"segment,omitempty"`
	Batch   *batchLine     `json:"batch,omitempty"`
	Record  *recordLine    `json:"record,omitempty"`
	Control *controlLine   `json:"control,omitempty"`
	End     *endLine       `json:"end,omitempty"`
}

type batchLine struct {
	FileByte int64            `json:"file_byte"`
	Offset   segment.Offset   `json:"offset"`
	Position segment.Position `json:"position"`
	FirstID  segment.MsgID    `json:"first_id"`
	Count    uint32           `json:"count"`
	Bytes    int              `json:"bytes"`
	Codec    segment.Codec    `json:"codec"`
	Flags    segment.Flags    `json:"flags"`
	Epoch    segment.Epoch    `json:"epoch"`
	Created  time.Time        `json:"created"`
	Appended time.Time        `json:"appended"`
	PrevCRC  uint32           `json:"prev_crc"`
	CRC      uint32           `json:"crc"`
}

type recordLine struct {
	ID      segment.MsgID `json:"id"`
	DeferMs uint32        `json:"defer_ms,omitempty"`
	Headers int           `json:"headers,omitempty"`
	Bytes   int           `json:"bytes"`
	Body    []byte        `json:"body"` // base64; cut to --body bytes
}

type endLine struct {
	FileByte int64          `json:"file_byte"`
	Offset   segment.Offset `json:"offset"`
	Batches  int            `json:"batches"`
	Why      string         `json:"why"`
}

// file shows everything and says whether the header or the very first batch does not verify.
func (d *segmentDumper) file() (damaged bool, err error) {
	f, err := os.Open(d.name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	r := newBatchReader(osFile{f}, st.Size())
	p, err := r.Bytes(0, segment.SegmentHeaderBytes)
	if err == nil {
		d.head, err = decodeSegmentHeader(p)
	}
	if err != nil {
		d.end(0, 0, 0, err)
		return true, nil
	}
	d.segment()
	return d.batches(r)
}

func (d *segmentDumper) batches(r *batchReader) (damaged bool, err error) {
	chain := expected{Position: d.head.FirstPosition, ID: d.head.FirstID}
	at, n := d.head.First, 0
	for ; ; n++ {
		var h segment.Header
		body, err := r.Batch(d.head.FileByte(at), &h)
		if err == nil {
			err = chain.Next(&h)
		}
		if err != nil {
			var path *os.PathError
			if errors.As(err, &path) {
				return false, err
			}
			d.end(d.head.FileByte(at), at, n, err)
			return n == 0 && !errors.Is(err, segment.ErrUnwritten), nil
		}
		d.batch(at, &h)
		if d.records {
			if err := d.content(&h, body); err != nil {
				d.end(d.head.FileByte(at), at, n, err)
				return true, nil
			}
		}
		at += segment.Offset(h.Size())
	}
}

func (d *segmentDumper) segment() {
	if d.json {
		d.print(segmentLine{Kind: "segment", Segment: &d.head})
		return
	}
	h := &d.head
	fmt.Fprintf(d.out, "%s: segment %d of topic %s, partition %d\n  offset %d, first batch %d: position %d, id %d, "+
		"appended %s; capacity %d bytes",
		d.name, h.Number, h.Topic, h.Partition, h.Base, h.First, h.FirstPosition, h.FirstID, stamp(h.FirstAppended),
		h.Capacity)
	if h.Starts {
		fmt.Fprint(d.out, "; the log starts here")
	}
	fmt.Fprintln(d.out)
}

func (d *segmentDumper) batch(at segment.Offset, h *segment.Header) {
	if d.json {
		d.print(segmentLine{Kind: "batch", Batch: &batchLine{
			d.head.FileByte(at), at, h.Position, h.FirstID, h.Count, h.Size(), h.Codec, h.Flags, h.Epoch,
			time.Unix(0, h.Created).UTC(), time.Unix(0, h.Appended).UTC(), h.PrevCRC, h.CRC,
		}})
		return
	}
	what := fmt.Sprintf("%d messages from id %d", h.Count, h.FirstID)
	if h.Control() {
		what = fmt.Sprintf("control, next id %d", h.FirstID)
	}
	fmt.Fprintf(d.out, "%12d  batch %d: %s, %d bytes, codec %d, flags %#x, epoch %d, appended %s, crc %08x after %08x\n",
		d.head.FileByte(at), h.Position, what, h.Size(), h.Codec, uint16(h.Flags), h.Epoch, stamp(h.Appended), h.CRC,
		h.PrevCRC)
}

func (d *segmentDumper) content(h *segment.Header, body []byte) (err error) {
	if h.Control() {
		return fold.DecodeControls(body, func(c *fold.Control) error {
			l := describeControl(c)
			if d.json {
				d.print(segmentLine{Kind: "control", Control: &l})
			} else {
				fmt.Fprintf(d.out, "%14s%s\n", "", l.text())
			}
			return nil
		})
	}
	id := h.FirstID
	d.scratch, err = records(h, body, d.scratch, func(r *segment.Record) error {
		shown := r.Body[:min(len(r.Body), max(d.bodies, 0))]
		if d.json {
			d.print(segmentLine{Kind: "record", Record: &recordLine{id, r.Defer, len(r.Headers), len(r.Body), shown}})
		} else {
			fmt.Fprintf(d.out, "%14sid %d, %d bytes", "", id, len(r.Body))
			if r.Defer > 0 {
				fmt.Fprintf(d.out, ", deferred %d ms", r.Defer)
			}
			fmt.Fprintf(d.out, ": %q\n", shown)
		}
		id++
		return nil
	})
	return err
}

func (d *segmentDumper) end(fileByte int64, at segment.Offset, batches int, why error) {
	if d.json {
		d.print(segmentLine{Kind: "end", End: &endLine{fileByte, at, batches, why.Error()}})
		return
	}
	fmt.Fprintf(d.out, "%12d  end after %d batches: %v\n", fileByte, batches, why)
}

func (d *segmentDumper) print(l segmentLine) {
	l.File = d.name
	if err := d.enc.Encode(l); err != nil {
		panic("BUG: a line does not encode: " + err.Error())
	}
}

func stamp(ns int64) string {
	return time.Unix(0, ns).UTC().Format(time.RFC3339Nano)
}
