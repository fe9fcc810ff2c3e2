package offline

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock/clog"
	"penstock/segment"
)

func clogdumpCommand(failed func(int, error) error) *cobra.Command {
	asJSON, content, live := false, false, false
	cmd := &cobra.Command{
		Use: "clogdump DATA_PATH", Short: "Show the commit log of a stopped node", Args: cobra.ExactArgs(1),
		Long: "Show a node's commit log: its files, groups and, asked for, records, also what a start would not reach any\n" +
			"more. It changes nothing.\n\n" +
			"Exit codes: 0 it was shown; 1 a group did not verify (after a crash the last one may be torn: fsck judges);\n" +
			"2 it cannot be read.",
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per group")
	cmd.Flags().BoolVar(&content, "records", false, "show the records of each group")
	cmd.Flags().BoolVar(&live, "live", false, "read although a node may be running: what is shown may be changing")
	return runs(cmd, failed, func(out *bufio.Writer, args []string) (int, error) {
		dir, err := openDirectory(args[0], live)
		if err != nil {
			return exitNotChecked, err
		}
		d := groupDumper{out: out, enc: json.NewEncoder(out), json: asJSON, records: content, store: dir.Node}
		err = errors.Join(clog.Scan(dir.Disk, d.group), dir.Close())
		switch {
		case err != nil:
			return exitNotChecked, err
		case d.damaged:
			return exitCorrupt, nil
		}
		return exitClean, nil
	})
}

// groupDumper shows groups as Scan finds them.
type groupDumper struct {
	out           io.Writer
	enc           *json.Encoder
	json, records bool
	store         nodeFile
	file          string
	damaged       bool
}

type groupLine struct {
	File      string        `json:"file"`
	Offset    int64         `json:"offset"`
	Seq       uint64        `json:"seq"`
	Durable   uint64        `json:"durable"`
	Oldest    uint64        `json:"oldest_file"`
	Bytes     int64         `json:"bytes"`
	Records   int           `json:"records"`
	PrevCRC   uint32        `json:"prev_crc"`
	CRC       uint32        `json:"crc"`
	Continues bool          `json:"continues"`
	Foreign   bool          `json:"foreign,omitempty"` // of another store
	Error     string        `json:"error,omitempty"`
	Content   []groupRecord `json:"content,omitempty"`
}

type groupRecord struct {
	Type      string           `json:"type"`
	Offset    int64            `json:"offset"` // of the payload in the file
	Bytes     int              `json:"bytes"`
	Topic     string           `json:"topic,omitempty"`
	Partition uint32           `json:"partition"`
	Segment   uint32           `json:"segment"`
	At        segment.Offset   `json:"at"` // in the partition's log
	Position  segment.Position `json:"position"`
	FirstID   segment.MsgID    `json:"first_id"`
	Count     uint32           `json:"count"`
}

func (d *groupDumper) group(f clog.FileInfo, g clog.GroupInfo, recs []clog.RecordInfo) error {
	l := groupLine{
		File: f.Name, Offset: g.Offset, Seq: g.Seq, Durable: g.Durable, Oldest: g.Oldest, Bytes: g.Bytes, Records: g.Records,
		PrevCRC: g.PrevCRC, CRC: g.CRC, Continues: g.Continues, Foreign: g.Store != d.store.StoreID,
	}
	if g.Err != nil {
		d.damaged = true
		l.Error = g.Err.Error()
	}
	if d.records {
		for i := range recs {
			l.Content = append(l.Content, describeRecord(&recs[i]))
		}
	}
	if d.json {
		return d.enc.Encode(l)
	}
	return d.text(f, &l)
}

func describeRecord(r *clog.RecordInfo) groupRecord {
	l := groupRecord{
		Type: r.Type.String(), Offset: r.Offset, Bytes: len(r.Payload), Partition: r.Partition, Segment: r.Segment,
		At: r.Placement.Offset,
	}
	if r.Type != clog.Checkpoint {
		l.Topic = r.Topic.String()
	}
	var h segment.Header
	if r.Type == clog.Batch && h.Decode(r.Payload) == nil {
		l.Position, l.FirstID, l.Count = h.Position, h.FirstID, h.Count
	}
	return l
}

func (d *groupDumper) text(f clog.FileInfo, l *groupLine) error {
	if f.Name != d.file {
		d.file = f.Name
		fmt.Fprintf(d.out, "%s: %d bytes\n", f.Name, f.SizeBytes)
	}
	fmt.Fprintf(d.out, "%12d  group %d: %d records, %d bytes, durable up to %d, oldest file %d, crc %08x after %08x",
		l.Offset, l.Seq, l.Records, l.Bytes, l.Durable, l.Oldest, l.CRC, l.PrevCRC)
	if !l.Continues {
		fmt.Fprint(d.out, ", does not follow the group before it")
	}
	if l.Foreign {
		fmt.Fprint(d.out, ", of another store")
	}
	if l.Error != "" {
		fmt.Fprintf(d.out, ", DAMAGED: %s", l.Error)
	}
	fmt.Fprintln(d.out)
	for _, r := range l.Content {
		if r.Topic == "" {
			fmt.Fprintf(d.out, "%14s%s chunk %d, %d bytes\n", "", r.Type, r.Partition, r.Bytes)
			continue
		}
		fmt.Fprintf(d.out, "%14s%s of %s/%d, %d bytes, segment %d, offset %d, position %d, %d messages from id %d\n",
			"", r.Type, r.Topic, r.Partition, r.Bytes, r.Segment, r.At, r.Position, r.Count, r.FirstID)
	}
	return nil
}
