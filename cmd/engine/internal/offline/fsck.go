// Command fsck verifies a data directory of a stopped node and changes nothing in it.
//
// It checks the commit log with the same judgement as a restart, and every batch of every segment: both checksums, the
// chain, dense ids, every record, and that each index agrees with its segment; and what cuts took from copies. Exit
// codes: 0 everything is as it was written; 1 something is not, each finding on one line; 2 it could not be checked.
package main

import (
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

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("fsck", flag.ContinueOnError)
	fs.SetOutput(stderr)
	asJSON := fs.Bool("json", false, "print the report as JSON")
	fs.Usage = func() {
		fmt.Fprintf(stderr,
			"usage: fsck [--json] DATA-DIRECTORY\nThe node must be stopped. Exit code 0: clean, 1: corrupt, 2: not checked.\n")
	}
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		if err == nil {
			fs.Usage()
		}
		return offline.CannotCheck
	}
	report, err := check(fs.Arg(0))
	if err != nil {
		fmt.Fprintf(stderr, "fsck: nothing was checked: %v\n", err)
		return offline.CannotCheck
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = report.print(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "fsck: %v\n", err)
		return offline.CannotCheck
	}
	if report.FindingCount > 0 {
		return offline.Corrupt
	}
	return offline.Clean
}
