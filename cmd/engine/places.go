package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/batch"
	nodes "penstock/client"
)

// startPlace is where reading begins: at the oldest message, behind the newest one, at a message, or at a time. All
// commands read and write it in the same words.
type startPlace struct {
	word string   // oldest or newest; "": one of the others
	id   batch.ID // if isID
	isID bool
	time time.Time
}

// parsePlace reads the value of a flag.
func parsePlace(flag, text string, now time.Time) (p startPlace, err error) {
	if text == "oldest" || text == "newest" {
		return startPlace{word: text}, nil
	}
	if p.id, err = batch.ParseID([]byte(text)); err == nil {
		p.isID = true
		return p, nil
	}
	if p.time, err = parseTime(text, now); err != nil {
		return p, &exitError{exitUsage, fmt.Errorf("--%s %s is neither oldest nor newest, nor an ID of 16 hex digits, nor a "+
			"time such as %s", flag, text, timeHelp)}
	}
	return p, nil
}

// String returns the place as the parameters from and at of the HTTP API have it.
func (p startPlace) String() string {
	switch {
	case p.word != "":
		return p.word
	case p.isID:
		return p.id.String()
	}
	return p.time.UTC().Format(time.RFC3339Nano)
}

// from returns the place for the native client. partition is that of an id, otherwise -1.
func (p startPlace) from() (from nodes.From, partition int) {
	switch {
	case p.word == "oldest":
		return nodes.FromOldest(), -1
	case p.word == "newest":
		return nodes.FromNewest(), -1
	case p.isID:
		return nodes.FromID(p.id), int(p.id.Partition())
	}
	return nodes.FromTime(p.time), -1
}

// place reads --from of the commands that read.
func place(text string) (from nodes.From, partition int, err error) {
	p, err := parsePlace("from", text, time.Now())
	if err != nil {
		return from, 0, err
	}
	from, partition = p.from()
	return from, partition, nil
}

// placeFlag adds a flag for a place, with the words that the shell proposes.
func placeFlag(cmd *cobra.Command, p *string, name, usage string) {
	cmd.Flags().StringVar(p, name, "", usage)
	must1(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(
		[]string{"oldest", "newest"}, cobra.ShellCompDirectiveNoFileComp)))
}

// oldSeeks are the values of --to that had their own value in --value, and what is said now.
var oldSeeks = map[string]string{"beginning": "oldest", "end": "newest", "id": "", "time": "", "count": ""}

// seekPlace adds the parameters of /channel/seek to q, and says in words where the channel goes on. What was said
// otherwise in an earlier version is understood, and a line on progress says how it is said now.
func seekPlace(q url.Values, to, value string, progress io.Writer) (where string, err error) {
	if now, old := oldSeeks[to]; old {
		if now == "" {
			if now = value; to == "count" && !strings.HasPrefix(value, "-") && !strings.HasPrefix(value, "+") {
				now = "+" + value
			}
		}
		fmt.Fprintf(progress, "engine: --to %s is said as --to %s since this version; the next one reads only that\n",
			strings.TrimSpace(to+" --value "+value), now)
		to, value = now, ""
	}
	if value != "" {
		return "", &exitError{exitUsage, fmt.Errorf("--value %s belongs to no place: say --to %s", value, value)}
	}
	set := func(kind, value string) {
		q.Set("to", kind)
		if value != "" {
			q.Set("value", value)
		}
	}
	if strings.HasPrefix(to, "+") || strings.HasPrefix(to, "-") {
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			return "", &exitError{exitUsage, fmt.Errorf("--to %s is not a number of messages", to)}
		}
		set("count", strconv.FormatInt(n, 10))
		if n < 0 {
			return fmt.Sprintf("%s back", counted(-n, "message")), nil
		}
		return fmt.Sprintf("%s forward", counted(n, "message")), nil
	}
	p, err := parsePlace("to", to, time.Now())
	switch {
	case err != nil:
		return "", err
	case p.word == "oldest":
		set("beginning", "")
		return "the oldest message", nil
	case p.word == "newest":
		set("end", "")
		return "the next message that is published", nil
	case p.isID:
		set("id", p.String())
		return "message " + p.String(), nil
	}
	set("time", p.String())
	return "what was stored at " + p.String() + " or later", nil
}
