package nsq

import (
	"math"
	"strconv"
)

// partitionArgs are the parameters of a command that stock NSQ does not have.
type partitionArgs struct {
	addressed bool   // the command names a partition
	partition int    // the partition if addressed: ≥ 0, but perhaps more than the topic has
	from      []byte // TYPE:VALUE in a SUB_ADVANCED: the place in the log at which to start
}

func lookupYouzanVerb(name []byte) verb {
	switch string(name) {
	case "PUB_EXT":
		return verbPubExt
	case "PUB_TRACE":
		return verbPubTrace
	case "MPUB_EXT":
		return verbMpubExt
	case "MPUB_TRACE":
		return verbMpubTrace
	case "SUB_ADVANCED":
		return verbSubAdvanced
	case "SUB_ORDERED":
		return verbSubOrdered
	}
	return verbNone
}

// plain returns the NSQ verb that v extends. v has the limits of that verb, and uses its name in error codes.
func (v verb) plain() verb {
	switch v {
	case verbPubExt, verbPubTrace:
		return verbPub
	case verbMpubExt, verbMpubTrace:
		return verbMpub
	case verbSubAdvanced, verbSubOrdered:
		return verbSub
	}
	return v
}

func (v verb) batches() bool    { return v.plain() == verbMpub }
func (v verb) subscribes() bool { return v.plain() == verbSub }

// partitionParam parses the number of a partition; -1 names none. nsqd ignores further parameters of PUB, MPUB and SUB,
// so after these verbs a text that is not a number is ignored.
func (cmd *command) partitionParam(rest []byte) *fault {
	text, _, _ := cut(rest)
	n, err := strconv.Atoi(string(text))
	switch {
	case err == nil && n >= 0 && n <= math.MaxInt32:
		cmd.addressed, cmd.partition = true, n
	case err == nil && n == -1:
	case cmd.verb.plain() != cmd.verb:
		return faultf("E_BAD_PARTITION %s partition %q is not valid", cmd.verb, text)
	}
	return nil
}

// subscribeParams parses the partition, and the place in a SUB_ADVANCED.
func (cmd *command) subscribeParams(rest []byte) *fault {
	f := cmd.partitionParam(rest)
	if f != nil || cmd.verb != verbSubAdvanced {
		return f
	}
	if _, rest, more := cut(rest); more {
		cmd.from, _, _ = cut(rest)
	}
	return nil
}

// beyondNSQ reports whether only a client of youzan's can have sent the command.
func (cmd *command) beyondNSQ() bool { return cmd.addressed || cmd.verb.plain() != cmd.verb }

// onlyPartition returns the partition that a SUB named, or nil.
func (cmd *command) onlyPartition() *uint32 {
	if !cmd.addressed {
		return nil
	}
	n := uint32(cmd.partition)
	return &n
}
