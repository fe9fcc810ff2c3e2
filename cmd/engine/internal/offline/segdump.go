package offline

import (
	"bufio"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

// segmentOptions are what to show of a segment.
type segmentOptions struct {
	json    bool
	records bool
	bodies  int // bytes of each body to show
}

func segdumpCommand(failed func(int, error) error) *cobra.Command {
	var o segmentOptions
	cmd := &cobra.Command{
		Use: "segdump FILE...", Short: "Show segment files", Args: cobra.MinimumNArgs(1),
		Long: "Show segment files: the header, the batches and, asked for, the records in them. A segment file does not\n" +
			"say where it ends, so segdump reads as far as the batches continue each other, and then says what it met\n" +
			"there: the file's end, unwritten space, or something that does not continue the chain, which may be the\n" +
			"remains of a log that was cut, or damage (fsck can tell).\n\n" +
			"Exit codes: 0 the files were shown; 1 the first thing in one of them does not verify; 2 a file cannot be\n" +
			"read.",
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print one JSON object per line: a header, a batch, a record or the end")
	cmd.Flags().BoolVar(&o.records, "records", false, "show the records of each batch, and the entries of control batches")
	cmd.Flags().IntVar(&o.bodies, "body", 32, "bytes of each message to show with --records")
	return runs(cmd, failed, func(out *bufio.Writer, args []string) (int, error) {
		code := exitClean
		for _, name := range args {
			d := segmentDumper{segmentOptions: o, out: out, enc: json.NewEncoder(out), name: name}
			damaged, err := d.file()
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", cmd.Root().Name(), err) // the other files are shown
				code = exitNotChecked
			} else if damaged && code == exitClean {
				code = exitCorrupt
			}
		}
		return code, nil
	})
}
