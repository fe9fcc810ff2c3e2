// Package faults has the statistics of a node (Stats), and decides which of them are faults that an operator should
// look into. Package node fills them in; nodes ask each other for their faults. It does no I/O. It may import package
// health and replicate/wire.
package faults

import (
	"time"

	"penstock/internal/node/health"
	"penstock/replicate/wire"
)

// Fault is one kind of trouble that a node has now, or has had since Open. Nodes ask each other for their faults.
type Fault = wire.Fault

// clockAheadFaultMs is the smallest difference between the wall clock and the engine's clock that counts as a fault.
// Time services correct smaller differences all the time.
const clockAheadFaultMs = int64(time.Second / time.Millisecond)

// kind is a kind of fault. count returns how many there are of it; 0: it is no fault now.
type kind struct {
	name  string
	count func(s *Stats) int64
	words string
}

func row(name string, count func(s *Stats) int64, words string) kind { return kind{name, count, words} }

// all are all kinds of faults, the worst first.
var all = []kind{
	row("ground_lost", func(s *Stats) int64 { return flag(s.GroundLost) },
		"files of the data directory were removed, replaced or covered under the running node: nothing more is answered "+
			"OK, and what was answered may be gone from this disk; restart the node"),
	row("failed", func(s *Stats) int64 { return flag(s.Failed) },
		"the commit log failed or is damaged: nothing more is stored; restart the node, and if that does not help, see "+
			"its log"),
	row("disk_failed", func(s *Stats) int64 { return flag(s.DiskState == "failed") },
		"the disk does not answer for so long that nobody waits for it any more"),
	row("disk_hung", func(s *Stats) int64 { return flag(s.DiskState == "hung") }, "the disk does not answer"),
	row("disk_slow", func(s *Stats) int64 { return flag(s.DiskState == "slow") },
		"the disk is slow, or hung a while ago: the node is given no leadership that another can have"),
	row("disk_no_inodes", func(s *Stats) int64 { return flag(s.NoInodes) },
		"the file system of the data directory has no inodes left: publishing is refused, consuming goes on; remove files "+
			"there that nobody needs"),
	row("disk_full", func(s *Stats) int64 { return flag(s.DiskFull && !s.NoInodes) },
		"the disk is full: publishing is refused, consuming goes on"),
	row("disk_transient", func(s *Stats) int64 { return flag(s.Transient) },
		"the data directory is in memory, or in the own layer of a container: everything in it is lost with that; the "+
			"node's health says when"),
	row("certificates_refused", func(s *Stats) int64 { return int64(s.CertificatesRefused) },
		"certificates have ended, or are not valid yet: new connections that need them are refused; the node's health "+
			"names the files, and reads new ones by itself"),
	row("certificates_ending", func(s *Stats) int64 { return int64(s.CertificatesEnding) },
		"certificates end within 30 days; the node's health names the files, and reads new ones by itself"),
	row("store_members_apart", func(s *Stats) int64 { return int64(s.StoreMembersApart) },
		"members of the metadata store that the etcd member on this node cannot reach: with one more fault the store may "+
			"have no majority; look at the network and at cluster-peers; the node's health names those that live"),
	row("store_member_failed", func(s *Stats) int64 { return int64(s.StoreMemberFailed) },
		"the etcd member on this node has stopped, or its ports do not answer: with one more fault the metadata store may "+
			"have no majority; the node's health says why, and what to do"),
	row("nodes_unconnected", func(s *Stats) int64 { return int64(s.NodesUnconnected) },
		"nodes live to which this one has had no connection for longer than a lease: neither stores what the other leads; "+
			"the node's health names them; look at the network, cluster-address, and the cluster's secret or certificates"),
	row("auth_silent_s", func(s *Stats) int64 { return s.AuthSilentS },
		"seconds for which no auth server has answered: clients go on with expired grants for auth-hold-time, and new ones "+
			"are refused; start the auth servers again"),
	row("damaged_copies", func(s *Stats) int64 { return int64(s.DamagedCopies) },
		"copies of partitions hold something that does not read back; it is repaired from a replica that reads back"),
	row("unread_copies", func(s *Stats) int64 { return int64(s.UnreadCopies) },
		"copies of partitions hold entries of a newer version: kept, and not led here"),
	row("read_only_topics", func(s *Stats) int64 { return int64(s.ReadOnlyTopics) },
		"topics of which partitions are read only: a part of their logs is missing, damaged or of a newer version, so "+
			"nothing new is stored there; the node's health names the first, penstock topic list all"),
	row("contested_copies", func(s *Stats) int64 { return int64(s.Contested) },
		"copies have messages that their leaders lack and that were probably answered OK: nothing is cut, and an operator "+
			"has to choose: see penstock cluster topics, and penstock cluster force-leader --dry-run"),
	row("commit_torn_groups", func(s *Stats) int64 { return int64(s.TornGroups) },
		"the commit log's end was cut at the start, and may have been answered OK: copies compare themselves before they "+
			"lead"),
	row("commit_log_forgotten", func(s *Stats) int64 { return flag(s.Forgotten) },
		"files of the commit log were gone at the start: copies compare themselves with other replicas and are fetched "+
			"again; find out who removed them"),
	row("shortened_copies", func(s *Stats) int64 { return int64(s.Shortened) },
		"copies may lack what this node acknowledged: they compare themselves with other replicas before they lead, and "+
			"fetch what they lack; keep the other replicas running"),
	row("short_copies", func(s *Stats) int64 { return int64(s.Short) },
		"copies forgot what they had acknowledged: they are not elected until they have fetched it from their leaders; do "+
			"not remove those"),
	row("shortened_copies_blocked", func(s *Stats) int64 { return int64(s.Blocked) },
		"partitions wait for a replica that may have more and cannot lead: if a restart of its node does not help, force "+
			"their leaders"),
	row("shortened_copies_lost", func(s *Stats) int64 { return int64(s.Losses) },
		"partitions went on although no replica could show that nothing acknowledged is missing"),
	row("shortened_copies_waited", func(s *Stats) int64 { return int64(s.ComparingWaits) },
		"times that a partition waited for another replica of such a copy for more than 10 s"),
	row("shortened_copies_yielded", func(s *Stats) int64 { return int64(s.Yielded) },
		"leaderships were given to replicas that had more"),
	row("older_directory", func(s *Stats) int64 { return int64(s.OlderDirectory) },
		"the data directory is not the one that the node ran on last (an older state, or the original of a copy): its "+
			"copies compare themselves before they lead"),
	row("unknown_topics", func(s *Stats) int64 { return int64(s.UnknownTopics) },
		"topics of the data directory are unknown to the cluster, whose metadata are of an earlier moment or were made "+
			"anew: their messages are kept and not served"),
	row("older_metadata", func(s *Stats) int64 { return int64(s.OlderMetadata) },
		"partitions' metadata were older than this node's data: their leaders compare themselves with all replicas"),
	row("copies_dropped", func(s *Stats) int64 { return int64(s.Dropped) },
		"copies were damaged beyond repair in place, and fetched anew from a replica"),
	row("aside_cuts", func(s *Stats) int64 { return int64(s.AsideCuts) },
		"cuts took messages from copies that their leaders did not have: mostly ends of logs that were never answered OK; "+
			"penstock aside list shows them"),
	row("channels_with_dead_letters_aside", func(s *Stats) int64 { return int64(s.AsideChannels) },
		"dead letters could not be moved to the dead-letter topic: they are kept and tried again; penstock channel list "+
			"says why"),
	row("full_channels", func(s *Stats) int64 { return int64(s.FullChannels) },
		"nothing new of a partition is delivered, because too many messages wait between finished ones: nothing is lost; "+
			"penstock channel list names them"),
	row("dropping_channels", func(s *Stats) int64 { return int64(s.DroppingChannels) },
		"channels lost messages in the last 10 minutes: retention or a quota removed them before they were finished; "+
			"penstock channel list says how many"),
	row("skipping_channels", func(s *Stats) int64 { return int64(s.SkippingChannels) },
		"channels discard what is published, because somebody made them skip; penstock channel list names them"),
	row("paused_channels", func(s *Stats) int64 { return int64(s.PausedChannels) },
		"channels deliver nothing, because somebody paused them; penstock channel list names them"),
	row("paused_topics", func(s *Stats) int64 { return int64(s.PausedTopics) },
		"channels get nothing of what is published, because somebody paused the topic; penstock topic list names them"),
	row("starved_channels", func(s *Stats) int64 { return int64(s.StarvedChannels) },
		"messages wait and somebody consumes, but no consumer has asked for any for 10 s; penstock channel list names them"),
	row("topics_over_quota", func(s *Stats) int64 { return int64(s.OverQuotaTopics) },
		"publishing was refused in the last minute, because the channels have not finished what the topic may keep; "+
			"penstock topic list names them"),
	row("delays_refused_topics", func(s *Stats) int64 { return int64(s.DelaysRefused) },
		"topics refuse delayed messages, because as many wait as max-ranges, max-state-bytes or token-share allows; "+
			"what has no delay goes on; penstock topic list names them"),
	row("state_over_limit_bytes", func(s *Stats) int64 { return max(0, s.stateOver()) },
		"bytes of memory by which delayed messages and confirmations exceed max-state-bytes: this node follows leaders "+
			"that allow more; give it the same limit as the others and the memory for it, or lower theirs"),
	row("partitions_near_limit", func(s *Stats) int64 { return near(s.ListedPartitions, s.PartitionLimit) },
		"partitions of all topics are nine tenths or more of max-partitions: beyond it new topics and partitions are "+
			"refused; delete topics that nobody uses, or raise it on all nodes"),
	row("topics_near_limit", func(s *Stats) int64 { return near(s.ListedTopics, s.TopicLimit) },
		"topics are nine tenths or more of max-topics: beyond it new ones are refused; delete those that nobody uses, or "+
			"raise it on all nodes"),
	row("log_lines_dropped", func(s *Stats) int64 { return int64(s.LogLinesDropped) },
		"lines of the log were dropped, because the program's logger did not take them in time"),
	row("disk_hangs", func(s *Stats) int64 { return int64(s.DiskHangs) },
		"times that nothing came back from the disk for disk-patience"),
	row("disk_hand_overs", func(s *Stats) int64 { return int64(s.DiskHandOvers) },
		"leaderships were given away because of the disk"),
	row("scrub_damaged", func(s *Stats) int64 { return int64(s.ScrubDamaged) },
		"stored ranges did not read back when the scrub read them"),
	row("scrub_commit_damaged", func(s *Stats) int64 { return int64(s.ScrubLogDamaged) },
		"commit log files did not read back when the scrub read them; what they held went to segments"),
	row("scrub_mended", func(s *Stats) int64 { return int64(s.ScrubMended) },
		"damaged bytes were written again from what the node still knew"),
	row("reads_recovered", func(s *Stats) int64 { return int64(s.ReadsRecovered) },
		"stored ranges could not be read for a while, and read back again"),
	row("isr_changes_held_back", func(s *Stats) int64 { return int64(s.ISRHeldBack) },
		"changes of in-sync replicas were held back, because a replica came and went too often"),
	row("stranded_hand_overs", func(s *Stats) int64 { return int64(s.Stranded) },
		"leaderships were given away because too few in-sync replicas answered, which were alive: the network between "+
			"them was broken"),
	row("missing_copies", func(s *Stats) int64 { return int64(s.MissingCopies) },
		"partitions of which this node should have had a copy for more than 5 s, and had none: look for an error when the "+
			"topic was opened here, or restart this node"),
	row("clock_steps", func(s *Stats) int64 { return int64(s.ClockSteps) },
		"steps of the wall clock; the engine's own clock does not follow them"),
	row("clock_ahead_ms", func(s *Stats) int64 { return max(0, s.clockFault()) },
		"milliseconds that the wall clock is ahead of the engine's clock, which does not follow its steps and which "+
			"messages are stored and due by"),
	row("clock_behind_ms", func(s *Stats) int64 { return max(0, -s.clockFault()) },
		"milliseconds that the wall clock is behind the engine's clock, which does not follow its steps and which "+
			"messages are stored and due by"),
	row("clock_differs_ms", func(s *Stats) int64 { return max(s.ClockDiffersMs, -s.ClockDiffersMs) },
		"milliseconds by which this node's clock differs from those of other nodes, so that delays and the times of "+
			"messages depend on the leader: the node's health names them, and a node that differs from most is given no "+
			"leadership that another can have; set its clock (NTP) and restart it"),
	row("delays_corrected", func(s *Stats) int64 { return int64(s.DelaysCorrected) },
		"messages waited by the clock of a leader that was ahead of this node's, and are due by this one's now"),
	row("batches_from_the_future", func(s *Stats) int64 { return int64(s.FromTheFuture) },
		"batches came from a leader whose clock was ahead of this node's: compare the clocks of the nodes"),
	row("forwarded_unknown", func(s *Stats) int64 { return int64(s.ForwardedUnknown) },
		"requests to publish were sent to leaders on other nodes whose answers were lost: they may be stored, and their "+
			"publishers were told that this is unknown"),
	row("remote_expired", func(s *Stats) int64 { return int64(s.RemoteExpired) },
		"ordered messages came here too late for a client, and were given back to their leaders"),
	row("remote_stale", func(s *Stats) int64 { return int64(s.RemoteStale) },
		"ordered messages came from a leader that another had followed, and were dropped"),
	row("remote_late_fences", func(s *Stats) int64 { return int64(s.RemoteLateFence) },
		"ordered channels waited at first, because a node did not answer their new leader"),
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// near returns count if most of what limit allows is taken.
func near(count, limit int64) int64 {
	if health.NearLimit(int(count), int(limit)) {
		return count
	}
	return 0
}

// clockFault returns ClockAheadMs, or 0 if that is too small for a fault.
func (s *Stats) clockFault() int64 {
	if s.ClockAheadMs >= clockAheadFaultMs || s.ClockAheadMs <= -clockAheadFaultMs {
		return s.ClockAheadMs
	}
	return 0
}

// stateOver returns by how much the state exceeds its limit; at most 0: it does not.
func (s *Stats) stateOver() int64 {
	if s.StateLimitBytes == 0 {
		return 0
	}
	return s.StateBytes - s.StateLimitBytes
}

// Faults returns the faults in these statistics, in a fixed order with the worst first; empty: there is none. They name
// what an operator should look into. Low speed is not a fault.
func (s *Stats) Faults() []Fault {
	out := []Fault{}
	for i := range all {
		f := &all[i]
		if n := f.count(s); n != 0 {
			words := f.words
			if f.name == "skipping_channels" && s.SkippingSince != "" { // an older node does not say it
				c := health.Channel{Count: int(s.SkippedMessages), Why: s.SkippingSince, Before: s.SkippedBefore}
				words += "; altogether " + c.Skipped()
			}
			out = append(out, Fault{Name: f.name, Count: n, Words: words})
		}
	}
	return out
}
