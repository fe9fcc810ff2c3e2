package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"penstock/clog"
	"penstock/cmd/engine/internal/serve"
	"penstock/segment"
)

// What the linker sets (-X) does not change while the process runs.
var (
	// version is Penstock's own version; the linker sets it in packages.
	version = "0.1.0"

	// commit is set by the Makefile for builds without version control stamping.
	commit string
)

// build is what `penstock version --json` prints of this program.
type build struct {
	Version string  `json:"version"`
	Commit  string  `json:"commit"`
	Go      string  `json:"go"`
	System  string  `json:"system"`
	NSQ     string  `json:"nsq"`
	Ring    string  `json:"ring"`
	Formats formats `json:"formats"`
}

// formats are the versions of the stored formats that this program writes.
type formats struct {
	Batch     int `json:"batch"`
	Segment   int `json:"segment"`
	Index     int `json:"index"`
	CommitLog int `json:"commit_log"`
}

func versionCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the Go version and the format versions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := build{
				version, buildCommit(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, serve.NSQVersion(version), ring,
				formats{segment.BatchVersion, segment.SegmentVersion, segment.IndexVersion, clog.Version},
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(b)
			}
			f := &b.Formats
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "penstock %s\ncommit   %s\ngo       %s %s\nnsq      %s\nring     "+
				"%s\nformats  batch %d, segment %d, index %d, commit log %d\n",
				b.Version, b.Commit, b.Go, b.System, b.NSQ, b.Ring, f.Batch, f.Segment, f.Index, f.CommitLog)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func buildCommit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		revision, modified := "", ""
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = " (modified)"
			}
		}
		if revision != "" {
			return revision + modified
		}
	}
	if commit != "" {
		return commit
	}
	return "unknown"
}
