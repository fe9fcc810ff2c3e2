package offline

import (
	"fmt"
	"io"
	"time"
)

// maxFindings bounds the report; what is beyond is counted.
const maxFindings = 1000

// report is the outcome. Its JSON names are stable.
type report struct {
	Directory string `json:"directory"`
	NodeID    string `json:"node_id"`
	StoreID   string `json:"store_id"`

	Topics       int          `json:"topics"`
	Partitions   int          `json:"partitions"`
	Segments     int          `json:"segments"`
	Batches      int64        `json:"batches"`  // in segments
	Messages     int64        `json:"messages"` // in segments
	SegmentBytes int64        `json:"segment_bytes"`
	CommitLog    commitReport `json:"commit_log"`
	// Aside lists what cuts took from copies. It is no finding: penstock aside shows it.
	Aside []asideCut `json:"aside,omitempty"`

	Findings     []finding     `json:"findings"`
	FindingCount int           `json:"finding_count"`
	Took         time.Duration `json:"took_ns"`
}

// commitReport counts what a restart would replay.
type commitReport struct {
	Files    int    `json:"files"`
	Groups   uint64 `json:"groups"`
	Batches  int64  `json:"batches"`
	Messages int64  `json:"messages"`
	Bytes    int64  `json:"bytes"`
	// its last group is not whole and nothing promises it: whether it was ever answered OK cannot be known from this copy
	Torn bool `json:"torn"`

	// Forgotten says what is gone of the commit log, as log.mark shows; empty: nothing.
	Forgotten string `json:"forgotten,omitempty"`

	// Unneeded is the damage of a file that the log has no need of any more: a start removes it, and nothing is missing.
	Unneeded string `json:"unneeded,omitempty"`

	TornBytes  int64    `json:"torn_bytes,omitempty"`
	TornGroup  uint64   `json:"torn_group,omitempty"`
	TornFile   string   `json:"torn_file,omitempty"`
	TornOffset int64    `json:"torn_offset,omitempty"`
	TornParts  []string `json:"torn_partitions,omitempty"` // of its records that can still be read
}

// finding is something that is not as it was written.
type finding struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"` // in the file; -1: the file as a whole
	Topic  string `json:"topic,omitempty"`
	Detail string `json:"detail"`
}

func (r *report) find(f finding) {
	r.FindingCount++
	if len(r.Findings) < maxFindings {
		r.Findings = append(r.Findings, f)
	}
}

func (r *report) print(w io.Writer) error {
	fmt.Fprintf(w, "node %s, store %s in %s\n", r.NodeID, r.StoreID, r.Directory)
	fmt.Fprintf(w, "commit log: %d files, %d groups, %d bytes, %d batches with %d messages to replay\n",
		r.CommitLog.Files, r.CommitLog.Groups, r.CommitLog.Bytes, r.CommitLog.Batches, r.CommitLog.Messages)
	if c := &r.CommitLog; c.Unneeded != "" {
		fmt.Fprintf(w, "commit log: a file is damaged that was not needed any more, a start removes it and nothing is "+
			"missing: %s\n", c.Unneeded)
	}
	if c := &r.CommitLog; c.Torn {
		fmt.Fprintf(w, "commit log: the last group (%d, at byte %d of %s, %d bytes) is not whole: a crash cut its write "+
			"short, or the device changed what it had stored;\n"+
			"  from this copy nobody can tell whether anything of it was answered OK: compare with another replica\n",
			c.TornGroup, c.TornOffset, c.TornFile, c.TornBytes)
		for _, p := range c.TornParts {
			fmt.Fprintln(w, "  it held records of", p)
		}
	}
	fmt.Fprintf(w, "segments: %d topics, %d partitions, %d files, %d bytes, %d batches with %d messages\n",
		r.Topics, r.Partitions, r.Segments, r.SegmentBytes, r.Batches, r.Messages)
	for _, a := range r.Aside {
		if a.Unfinished {
			fmt.Fprintf(w, "aside: %s is not finished: a crash came before the cut, nothing is missing, a start removes it\n",
				a.ID)
			continue
		}
		fmt.Fprintf(w, "aside: %s: a cut took %d messages from topic %s, partition %d, positions %d to %d; they are kept: "+
			"see penstock aside\n", a.ID, a.Messages, a.Topic, a.Partition, a.From, a.Until-1)
	}
	for _, f := range r.Findings {
		place := f.Path
		if f.Offset >= 0 {
			place = fmt.Sprintf("%s at byte %d", f.Path, f.Offset)
		}
		if f.Topic != "" {
			place += " (topic " + f.Topic + ")"
		}
		fmt.Fprintf(w, "CORRUPT %s: %s\n", place, f.Detail)
	}
	if more := r.FindingCount - len(r.Findings); more > 0 {
		fmt.Fprintf(w, "... and %d more findings\n", more)
	}
	verdict := "clean: everything is as it was written"
	if r.CommitLog.Torn {
		verdict = "clean but for the end of the commit log, of which this copy cannot tell what it was"
	}
	if r.FindingCount > 0 {
		verdict = fmt.Sprintf("%d findings", r.FindingCount)
	}
	_, err := fmt.Fprintf(w, "%s (%s)\n", verdict, r.Took.Round(time.Millisecond))
	return err
}
