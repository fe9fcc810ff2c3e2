package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"penstock/batch"
	nodes "penstock/client"
	"penstock/cmd/engine/internal/values"
)

// Place is where reading begins: at the oldest message, behind the newest one, at a message, or at a time. All
// commands read and write it in the same words.
type Place struct {
	Word string   // oldest or newest; "": one of the others
	ID   batch.ID // if IsID
	IsID bool
	Time time.Time
}

// ParsePlace reads the value of a flag.
func ParsePlace(flag, text string, now time.Time) (p Place, err error) {
	if text == "oldest" || text == "newest" {
		return Place{Word: text}, nil
	}
	if p.ID, err = batch.ParseID([]byte(text)); err == nil {
		p.IsID = true
		return p, nil
	}
	if p.Time, err = values.ParseTime(text, now); err != nil {
		return p, Fail(ExitUsage, fmt.Errorf("--%s %s is neither oldest nor newest, nor an ID of 16 hex digits, nor a "+
			"time such as %s", flag, text, values.TimeHelp))
	}
	return p, nil
}

// String returns the place as the parameters from and at of the HTTP API have it.
func (p Place) String() string {
	switch {
	case p.Word != "":
		return p.Word
	case p.IsID:
		return p.ID.String()
	}
	return p.Time.UTC().Format(time.RFC3339Nano)
}

// From returns the place for the native client. partition is that of an id, otherwise -1.
func (p Place) From() (from nodes.From, partition int) {
	switch {
	case p.Word == "oldest":
		return nodes.FromOldest(), -1
	case p.Word == "newest":
		return nodes.FromNewest(), -1
	case p.IsID:
		return nodes.FromID(p.ID), int(p.ID.Partition())
	}
	return nodes.FromTime(p.Time), -1
}

// PlaceFlag adds a flag for a place, with the words that the shell proposes.
func PlaceFlag(cmd *cobra.Command, p *string, name, usage string) {
	cmd.Flags().StringVar(p, name, "", usage)
	Must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(
		[]string{"oldest", "newest"}, cobra.ShellCompDirectiveNoFileComp)))
}
