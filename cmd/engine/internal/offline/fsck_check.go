package offline

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"penstock/clog"
	"penstock/internal/node/fold"
	"penstock/segment"
	"penstock/segment/aio"
)

// checker verifies one directory.
type checker struct {
	dir    *directory
	report *report
	names  map[string]string // topic uuid → name
	parts  map[segment.Identity]*partition
	order  []*partition

	checkpoint []byte
	decoded    bool
	scratch    []byte
	before     int  // findings before the replay
	noted      bool // the notes of where logs begin are believed
}

// partition is what the commit log says of one.
type partition struct {
	id     segment.Identity
	base   segment.State // at the checkpoint: what the segments must hold
	chain  expected      // after what was replayed
	end    segment.Offset
	broken bool // it stopped following; one finding is enough
}

func check(path string) (*report, error) {
	start := time.Now()
	dir, err := openDirectory(path, false)
	if err != nil {
		return nil, err
	}
	c := &checker{
		dir:    dir,
		report: &report{Directory: path, NodeID: dir.Node.NodeID, StoreID: dir.Node.StoreID.String(), Findings: []finding{}},
		names:  map[string]string{}, parts: map[segment.Identity]*partition{},
	}
	err = c.run()
	c.report.Took = time.Since(start)
	return c.report, errors.Join(err, dir.Close())
}

func (c *checker) run() error {
	topics, odd, err := c.dir.Topics()
	if err != nil {
		return err
	}
	for _, err := range odd {
		path, detail, _ := strings.Cut(err.Error(), ": ")
		c.report.find(finding{Path: path, Offset: -1, Detail: detail + "; the topic is not served"})
	}
	for i := range topics {
		c.names[topics[i].ID.String()] = topics[i].Name
	}
	c.report.Topics = len(topics)
	if err := c.replay(); err != nil {
		return err
	}
	nothing := c.report.CommitLog.Forgotten == "" && len(c.checkpoint) == 0 && c.report.CommitLog.Batches == 0 &&
		len(c.report.Findings) == 0
	for i := range topics {
		for n := range uint32(topics[i].Partitions) {
			id := segment.Identity{Topic: topics[i].ID, Partition: n}
			p := c.parts[id]
			if p == nil {
				p = &partition{id: id}
			}
			c.report.Partitions++
			if nothing {
				if err := c.orphaned(id); err != nil {
					return err
				}
			}
			if err := c.segments(p); err != nil {
				return err
			}
		}
	}
	return c.aside()
}

// orphaned finds segments of which the commit log says nothing, because it says nothing at all.
func (c *checker) orphaned(id segment.Identity) error {
	numbers, err := c.dir.Segments(id)
	if err != nil || len(numbers) == 0 {
		return err
	}
	c.report.find(finding{
		Path: partitionDir(id), Offset: -1, Topic: c.topic(id),
		Detail: "there are segments, and the commit log, which says where they end, is empty or gone: " +
			"a node refuses to start",
	})
	return nil
}

// replay runs the recovery of the commit log itself, which hands over everything that a restart would get, and judges
// the rest.
func (c *checker) replay() error {
	arena, err := aio.NewArena(1<<20, 4)
	if err != nil {
		return err
	}
	defer arena.Close()
	c.before = c.report.FindingCount
	report, err := clog.Read(c.dir.Disk, arena, clog.Options{
		Store: c.dir.Node.StoreID, MarkRequired: c.dir.MarkRequired(),
	}, c)
	r := &c.report.CommitLog
	c.noted = report.Noted
	if report.Unneeded != nil {
		r.Unneeded = report.Unneeded.Error()
	}
	r.Files, r.Groups, r.Bytes = report.Files, report.Groups, report.Bytes
	if t := report.Tear; t != nil && !t.Mark {
		r.Torn, r.TornBytes, r.TornGroup, r.TornFile, r.TornOffset = true, report.TornBytes, t.Group, t.File, t.Offset
		for _, id := range t.Partitions {
			r.TornParts = append(r.TornParts, "topic "+c.topic(id))
		}
	}
	if f := report.Forgotten; f != nil {
		c.forgotten(f)
	}
	var corrupt *segment.CorruptError
	switch {
	case errors.As(err, &corrupt):
		r.Torn = false // what lies behind the damage was promised
		found := finding{Path: corrupt.Path, Offset: corrupt.Offset, Detail: corrupt.Detail}
		if corrupt.Missing {
			r.Forgotten = corrupt.Error()
			found.Offset, found.Detail = -1, "FORGOTTEN: "+r.Forgotten
		}
		c.report.find(found)
	case err != nil:
		return err
	}
	return c.decodeCheckpoint()
}

// forgotten reports a log that lacks what log.mark says was written to it.
func (c *checker) forgotten(f *clog.Forgotten) {
	c.report.CommitLog.Forgotten = f.Detail
	detail := "FORGOTTEN: " + f.Detail
	if f.Wanted > 0 {
		detail += fmt.Sprintf("; the log ends with group %d and once reached group %d or more", f.Reached, f.Wanted)
	}
	c.report.find(finding{
		Path: f.File, Offset: -1, Detail: detail + ": messages that this node answered OK are missing here; a single node " +
			"refuses to start, one of a cluster starts and gets them from the other replicas",
	})
}

// Restart implements clog.Replayer. Nothing was found in segments yet.
func (c *checker) Restart() {
	c.checkpoint, c.decoded, c.parts, c.order = nil, false, map[segment.Identity]*partition{}, nil
	r := c.report
	r.CommitLog.Batches, r.CommitLog.Messages = 0, 0
	r.Findings, r.FindingCount = r.Findings[:min(len(r.Findings), c.before)], c.before
}

// Checkpoint implements clog.Replayer.
func (c *checker) Checkpoint(chunk []byte) error {
	c.checkpoint = append(c.checkpoint, chunk...)
	return nil
}

func (c *checker) decodeCheckpoint() error {
	if c.decoded {
		return nil
	}
	c.decoded = true
	parts, err := decodeCheckpoint(c.checkpoint)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, rest, err := fold.DecodeCursors(p.Cursors); err != nil || len(rest) != 0 {
			return fmt.Errorf("the channels of topic %s, partition %d do not decode: another version wrote them (%v)",
				p.ID.Topic, p.ID.Partition, err)
		}
		st := p.State
		c.add(&partition{
			id: p.ID, base: st, end: st.End,
			chain: expected{Position: st.Next, ID: st.NextID, CRC: st.LastCRC, CRCKnown: true},
		})
	}
	return nil
}

func (c *checker) add(p *partition) {
	c.parts[p.id] = p
	c.order = append(c.order, p)
}

// Record implements clog.Replayer. The commit log verified the batch; this verifies that it continues its partition.
func (c *checker) Record(rec *clog.Record) error {
	if err := c.decodeCheckpoint(); err != nil {
		return err
	}
	switch rec.Type {
	case clog.Truncate:
		return c.cut(rec)
	case clog.Batch:
	default:
		return nil
	}
	var h segment.Header
	if err := h.Decode(rec.Payload); err != nil {
		return err
	}
	c.report.CommitLog.Batches++
	c.report.CommitLog.Messages += int64(h.Count)
	id := segment.Identity{Topic: rec.Topic, Partition: rec.Partition}
	p := c.parts[id]
	if p == nil {
		p = &partition{id: id, chain: expected{CRCKnown: true}}
		c.add(p)
	}
	if p.broken {
		return nil
	}
	err := p.chain.Next(&h)
	if err == nil && rec.Offset != p.end {
		err = fmt.Errorf("the batch belongs at offset %d of its partition where %d follows", rec.Offset, p.end)
	}
	if err == nil {
		err = c.body(&h, rec.Payload[segment.HeaderBytes:])
	}
	p.end += segment.Offset(h.Size())
	if err != nil {
		p.broken = true
		c.report.find(finding{
			Path: fmt.Sprintf("clog/%010d.clog", rec.FileSeq), Offset: -1, Topic: c.topic(id),
			Detail: fmt.Sprintf("group %d: %v; the partition is read-only from there on", rec.GroupSeq, err),
		})
	}
	return nil
}

// cut follows a replica whose log was cut to what its leader had, or begun anew.
func (c *checker) cut(rec *clog.Record) error {
	to, anew, err := decodeCut(rec.Payload)
	if err != nil {
		return err
	}
	p := c.parts[to.ID]
	if p == nil {
		p = &partition{id: to.ID}
		c.add(p)
	}
	st := to.State
	if anew || st.End < p.base.End {
		p.base = st
	}
	p.end, p.broken = st.End, false
	p.chain = expected{Position: st.Next, ID: st.NextID, CRC: st.LastCRC, CRCKnown: true}
	return nil
}

// body decodes what a verified batch carries.
func (c *checker) body(h *segment.Header, body []byte) (err error) {
	if h.Control() {
		return fold.DecodeControls(body, func(*fold.Control) error { return nil })
	}
	c.scratch, err = records(h, body, c.scratch, nil)
	return err
}

func (c *checker) topic(id segment.Identity) string {
	name := c.names[id.Topic.String()]
	if name == "" {
		name = id.Topic.String()
	}
	return fmt.Sprintf("%s, partition %d", name, id.Partition)
}
