package command

import (
	"math"
	"strconv"
)

// PartitionArgs are the parameters of a command that stock NSQ does not have.
type PartitionArgs struct {
	Addressed bool   // the command names a partition
	Partition int    // the partition if addressed: ≥ 0, but perhaps more than the topic has
	From      []byte // TYPE:VALUE in a SUB_ADVANCED: the place in the log at which to start
}

func lookupYouzanVerb(name []byte) Verb {
	switch string(name) {
	case "PUB_EXT":
		return VerbPubExt
	case "PUB_TRACE":
		return VerbPubTrace
	case "MPUB_EXT":
		return VerbMpubExt
	case "MPUB_TRACE":
		return VerbMpubTrace
	case "SUB_ADVANCED":
		return VerbSubAdvanced
	case "SUB_ORDERED":
		return VerbSubOrdered
	}
	return VerbNone
}

// Plain returns the NSQ verb that v extends. v has the limits of that verb, and uses its name in error codes.
func (v Verb) Plain() Verb {
	switch v {
	case VerbPubExt, VerbPubTrace:
		return VerbPub
	case VerbMpubExt, VerbMpubTrace:
		return VerbMpub
	case VerbSubAdvanced, VerbSubOrdered:
		return VerbSub
	}
	return v
}

func (v Verb) Batches() bool    { return v.Plain() == VerbMpub }
func (v Verb) subscribes() bool { return v.Plain() == VerbSub }

// partitionParam parses the number of a partition; -1 names none. nsqd ignores further parameters of PUB, MPUB and SUB,
// so after these verbs a text that is not a number is ignored.
func (cmd *Command) partitionParam(rest []byte) *Fault {
	text, _, _ := cut(rest)
	n, err := strconv.Atoi(string(text))
	switch {
	case err == nil && n >= 0 && n <= math.MaxInt32:
		cmd.Addressed, cmd.Partition = true, n
	case err == nil && n == -1:
	case cmd.Verb.Plain() != cmd.Verb:
		return Faultf("E_BAD_PARTITION %s partition %q is not valid", cmd.Verb, text)
	}
	return nil
}

// subscribeParams parses the partition, and the place in a SUB_ADVANCED.
func (cmd *Command) subscribeParams(rest []byte) *Fault {
	f := cmd.partitionParam(rest)
	if f != nil || cmd.Verb != VerbSubAdvanced {
		return f
	}
	if _, rest, more := cut(rest); more {
		cmd.From, _, _ = cut(rest)
	}
	return nil
}

// BeyondNSQ reports whether only a client of youzan's can have sent the command.
func (cmd *Command) BeyondNSQ() bool { return cmd.Addressed || cmd.Verb.Plain() != cmd.Verb }

// OnlyPartition returns the partition that a SUB named, or nil.
func (cmd *Command) OnlyPartition() *uint32 {
	if !cmd.Addressed {
		return nil
	}
	n := uint32(cmd.Partition)
	return &n
}
