package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"
	"strings"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/segment"
)

// asideDir has what cuts took from copies: internal/node/FORMAT.md.
const asideDir = "aside"

// maxCutBytes bounds cut.json.
const maxCutBytes = 1 << 20

// asideCut is what a cut took from a copy, as far as the report needs cut.json.
type asideCut struct {
	ID        string           `json:"id"`
	TopicID   uuid.UUID        `json:"topic_id"`
	Topic     string           `json:"topic"`
	Partition uint32           `json:"partition"`
	From      segment.Position `json:"from_position"`
	Until     segment.Position `json:"until_position"`
	Batches   int64            `json:"batches"`
	Messages  int64            `json:"messages"`
	Bytes     int64            `json:"bytes"`
	// Unfinished says that a crash came while it was written: the log has what it holds, and a start removes it.
	Unfinished bool `json:"unfinished,omitempty"`
}

// aside lists what cuts took from copies, and verifies every batch of it. It passes over segments that a start or
// accept-loss moved out of the way: their files are not cuts, and fsck does not know which log they continue.
func (c *checker) aside() error {
	dirs, err := c.dir.Disk.ReadDir(asideDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if strings.HasPrefix(d.Name(), "segments-") {
			continue
		}
		cut := asideCut{ID: d.Name()}
		name := path.Join(asideDir, cut.ID, "cut.json")
		data, err := c.dir.Disk.ReadFile(name, maxCutBytes)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			cut.Unfinished = true
		case err == nil:
			err = cut.decode(data)
		}
		if err != nil && !cut.Unfinished {
			c.report.find(finding{Path: name, Offset: -1, Detail: err.Error()})
			continue
		}
		c.report.Aside = append(c.report.Aside, cut)
		if !cut.Unfinished {
			if err := c.asideBatches(&cut); err != nil {
				return err
			}
		}
	}
	return nil
}

// decode reads cut.json, which ends with a checksum as node.json does.
func (t *asideCut) decode(data []byte) error {
	const mark = ",\n  \"crc32c\": \""
	text := string(data)
	at := strings.LastIndex(text, mark)
	if at < 0 {
		return errors.New("it has no checksum")
	}
	sum := crc32.Checksum([]byte(text[:at]+"\n}\n"), crc32.MakeTable(crc32.Castagnoli))
	if rest := text[at+len(mark):]; rest != fmt.Sprintf("%08x\"\n}\n", sum) {
		return errors.New("its checksum does not match")
	}
	id := t.ID
	if err := json.Unmarshal(data, t); err != nil {
		return err
	}
	t.ID = id
	if !strings.HasPrefix(id, fmt.Sprintf("%s-%d-", t.TopicID, t.Partition)) {
		return errors.New("it does not describe its directory")
	}
	return nil
}

// asideBatches verifies the batches of a cut: checksums, the chain where positions follow each other, and the records.
func (c *checker) asideBatches(t *asideCut) (err error) {
	name := path.Join(asideDir, t.ID, "batches")
	bad := func(at int64, format string, args ...any) {
		c.report.find(finding{
			Path: name, Offset: at, Topic: c.topic(segment.Identity{Topic: t.TopicID, Partition: t.Partition}),
			Detail: fmt.Sprintf(format, args...),
		})
	}
	file, err := c.dir.Disk.Open(name)
	if err != nil {
		bad(-1, "%v", err)
		return nil
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var before segment.Header
	batches, messages := int64(0), int64(0)
	head, body := make([]byte, segment.HeaderBytes), []byte(nil)
	for at := int64(0); at < t.Bytes; batches++ {
		var h segment.Header
		err := file.ReadAt(head[:min(segment.HeaderBytes, t.Bytes-at)], at)
		if err == nil {
			err = h.Decode(head[:min(segment.HeaderBytes, t.Bytes-at)])
		}
		if err == nil && at+int64(h.Size()) > t.Bytes {
			err = fmt.Errorf("%w: it reaches beyond the end", batch.ErrInvalid)
		}
		if err == nil {
			body = append(body[:0], make([]byte, h.BodyBytes)...)
			err = file.ReadAt(body, at+segment.HeaderBytes)
		}
		if err == nil {
			err = batch.VerifyBody(&h, body)
		}
		if err == nil && !h.Control() {
			c.scratch, err = records(&h, body, c.scratch, nil)
		}
		if err == nil && batches > 0 && h.Position == before.Position+1 && h.PrevCRC != before.CRC {
			err = errors.New("it does not continue the batch before it")
		}
		if err == nil && (h.Position < t.From || h.Position >= t.Until || batches > 0 && h.Position <= before.Position) {
			err = fmt.Errorf("position %d does not belong here", h.Position)
		}
		if err != nil {
			bad(at, "%v", err)
			return nil
		}
		before, at, messages = h, at+int64(h.Size()), messages+int64(h.Count)
	}
	if batches != t.Batches || messages != t.Messages {
		bad(-1, "%d batches with %d messages; cut.json says %d with %d", batches, messages, t.Batches, t.Messages)
	}
	return nil
}
