package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"penstock/clog"
	"penstock/segment"
)

// version is Penstock's own version. NSQ clients see nsqVersion, whose first part is the version of nsqd that Penstock
// behaves like.
const (
	version    = "0.1.0"
	nsqVersion = "1.3.0+engine." + version
)

// commit is set by the Makefile for builds without version control stamping.
var commit string

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the Go version and the format versions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "penstock %s\ncommit   %s\ngo       %s %s/%s\nnsq      %s\nring     "+
				"%s\nformats  batch %d, segment %d, index %d, commit log %d\n",
				version, buildCommit(), runtime.Version(), runtime.GOOS, runtime.GOARCH, nsqVersion, ring,
				segment.BatchVersion, segment.SegmentVersion, segment.IndexVersion, clog.Version)
			return err
		},
	}
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
