// Command clogdump shows a node's commit log: its files, groups and, asked for, records, also what recovery would
// not reach any more. It changes nothing.
//
// Exit codes: 0 it was shown; 1 a group did not verify (after a crash the last one may be torn: fsck judges); 2 it
// cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"penstock/clog"
	"penstock/segment"
	"penstock/tools/internal/offline"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("clogdump", flag.ContinueOnError)
	fs.SetOutput(stderr)
	asJSON := fs.Bool("json", false, "print one JSON object per group")
	records := fs.Bool("records", false, "show the records of each group")
	live := fs.Bool("live", false, "read although a node may be running: what is shown may be changing")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "usage: clogdump [--json] [--records] [--live] DATA-DIRECTORY")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		if err == nil {
			fs.Usage()
		}
		return offline.CannotCheck
	}
	dir, err := offline.Open(fs.Arg(0), *live)
	if err != nil {
		fmt.Fprintf(stderr, "clogdump: %v\n", err)
		return offline.CannotCheck
	}
	out := bufio.NewWriter(stdout)
	d := dumper{out: out, enc: json.NewEncoder(out), json: *asJSON, records: *records, store: dir.Node}
	err = clog.Scan(dir.Disk, d.group)
	err = errors.Join(err, dir.Close(), out.Flush())
	if err != nil {
		fmt.Fprintf(stderr, "clogdump: %v\n", err)
		return offline.CannotCheck
	}
	if d.damaged {
		return offline.Corrupt
	}
	return offline.Clean
}

// dumper shows groups as Scan finds them.
type dumper struct {
	out           io.Writer
	enc           *json.Encoder
	json, records bool
	store         offline.Node
	file          string
	damaged       bool
}

type groupLine struct {
	File      string       `json:"file"`
	Offset    int64        `json:"offset"`
	Seq       uint64       `json:"seq"`
	Durable   uint64       `json:"durable"`
	Oldest    uint64       `json:"oldest_file"`
	Bytes     int64        `json:"bytes"`
	Records   int          `json:"records"`
	PrevCRC   uint32       `json:"prev_crc"`
	CRC       uint32       `json:"crc"`
	Continues bool         `json:"continues"`
	Foreign   bool         `json:"foreign,omitempty"` // of another store
	Error     string       `json:"error,omitempty"`
	Content   []recordLine `json:"content,omitempty"`
}

type recordLine struct {
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

func (d *dumper) group(f clog.FileInfo, g clog.GroupInfo, recs []clog.RecordInfo) error {
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
			l.Content = append(l.Content, describe(&recs[i]))
		}
	}
	if d.json {
		return d.enc.Encode(l)
	}
	return d.text(f, &l)
}

func describe(r *clog.RecordInfo) recordLine {
	l := recordLine{
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

func (d *dumper) text(f clog.FileInfo, l *groupLine) error {
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
