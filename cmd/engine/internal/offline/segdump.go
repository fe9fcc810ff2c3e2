// Command segdump shows segment files: the header, the batches and, asked for, the records in them.
//
// A segment file does not say where it ends, so segdump reads as far as the batches continue each other, and then says
// what it met there: the file's end, unwritten space, or something that does not continue the chain, which may be the
// remains of a log that was cut, or damage (fsck can tell). Exit codes: 0 the files were shown; 1 the first thing in
// one of them does not verify; 2 a file cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"

	"penstock/tools/internal/offline"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are what to show.
type options struct {
	json    bool
	records bool
	bodies  int // bytes of each body to show
}

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("segdump", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var o options
	fs.BoolVar(&o.json, "json", false, "print one JSON object per line: a header, a batch, a record or the end")
	fs.BoolVar(&o.records, "records", false, "show the records of each batch, and the entries of control batches")
	fs.IntVar(&o.bodies, "body", 32, "bytes of each message to show with --records")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "usage: segdump [--json] [--records] [--body N] FILE.seg...")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 {
		if err == nil {
			fs.Usage()
		}
		return offline.CannotCheck
	}
	code := offline.Clean
	out := bufio.NewWriter(stdout)
	for _, name := range fs.Args() {
		d := dumper{options: o, out: out, enc: json.NewEncoder(out), name: name}
		damaged, err := d.file()
		if err != nil {
			fmt.Fprintf(stderr, "segdump: %v\n", err)
			code = offline.CannotCheck
		} else if damaged && code == offline.Clean {
			code = offline.Corrupt
		}
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintf(stderr, "segdump: %v\n", err)
		return offline.CannotCheck
	}
	return code
}
