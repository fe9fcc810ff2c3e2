package health

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// O1: whatever the facts are, the verdict follows this table. "why" is what /ping says, and "reasons" parts of the
// sentence.
func TestJudge(t *testing.T) {
	served := func(change func(*Cluster)) *Cluster {
		c := &Cluster{
			View:       View{Self: 1, Leased: true, StoreAge: time.Second, LeaseLength: 2500 * time.Millisecond},
			Partitions: Partitions{Count: 4, Led: 2, Forwarded: 2}, NodeCount: 3,
		}
		change(c)
		return c
	}
	silent := func(c *Cluster) {
		c.Leased, c.StoreAge, c.Led, c.Forwarded, c.Leaderless = false, 12*time.Second, 0, 0, 4
		c.Dead, c.Unknown, c.UnknownFor = []string{"n2"}, []string{"n3"}, 12*time.Second
	}
	for name, tc := range map[string]struct {
		facts                        Facts
		live, ready, serves, healthy bool
		failed                       []string // names of the checks
		why                          string
		reasons                      []string
	}{
		"single node": {Facts{}, true, true, true, true, nil, "", nil},
		"starting": {
			Facts{Stage: "reads the commit log"},
			true, false, false, false,
			[]string{"recovered"},
			"the node is starting: reads the commit log",
			[]string{"is starting"},
		},
		"the commit log failed": {
			Facts{Failure: "a write failed", Curable: true},
			false, false, false, false,
			[]string{"commit-log"},
			"a write failed",
			[]string{"a write failed"},
		},
		"the commit log is damaged: a restart does not help": {
			Facts{Failure: "the log is corrupt"},
			true, false, false, false,
			[]string{"commit-log"},
			"the log is corrupt",
			[]string{"the log is corrupt"},
		},
		"the disk does not answer": {
			Facts{Disk: "hung"}, true, false, false, false, []string{"disk"}, "hung", []string{"hung"},
		},
		"the disk is full": {
			Facts{Full: "no room"}, true, false, false, false, []string{"disk"}, "no room", []string{"no room"},
		},
		"damaged data": {Facts{Damage: "t/0 is bad"}, true, true, false, false, nil, "t/0 is bad", []string{"t/0 is bad"}},
		"shutting down": {
			Facts{Closing: true}, true, false, true, true, []string{"not-draining"}, "", nil,
		},
		"cluster": {Facts{Cluster: served(func(*Cluster) {})}, true, true, true, true, nil, "", nil},
		"the metadata store is full, and a node is dead that nothing can replace": {
			Facts{Cluster: served(func(c *Cluster) {
				c.Store.Full, c.Dead, c.Leaderless = "the metadata store is full", []string{"n2"}, 1
			})},
			true, true, true, false, nil, "",
			[]string{"unhealthy: the metadata store is full; 1 partition without a live leader; node n2 is dead"},
		},
		"members of the metadata store are apart": {
			Facts{Cluster: served(func(c *Cluster) {
				c.Store.Apart, c.Dead = []string{"n2 (10.0.0.2:4255)", "n3 (10.0.0.3:4255)"}, []string{"n2"}
			})},
			true, true, true, false, nil, "",
			[]string{"the etcd member on this node cannot reach n3 (10.0.0.3:4255): if another one fails"},
		},
		"messages of cuts are kept": {
			Facts{AsideMessages: 1, Cluster: served(func(*Cluster) {})},
			true, true, true, true, nil, "",
			[]string{"healthy: ", "; 1 message that cuts took is kept aside"},
		},
		"dead letters are aside": {
			Facts{AsideLetters: &Channel{Topic: "orders", Name: "billing", Count: 1, Why: "too big", More: 2}},
			true, true, true, true, nil, "",
			[]string{
				"healthy: the node serves; channel billing of topic orders has 1 dead letter aside: it could not be moved to " +
					"the dead-letter topic (too big). It is kept and tried again: remove the cause, and do not delete the " +
					"channel, which would delete it, too; the same holds for 2 more channels",
			},
		},
		"a channel is full": {
			Facts{
				AsideLetters: &Channel{Topic: "orders", Name: "billing", Count: 3, Why: "no room"},
				FullChannel:  &Channel{Topic: "orders", Name: "mail", Count: 2, More: 1},
			},
			true, true, true, true, nil, "",
			[]string{
				"has 3 dead letters aside: they could not be moved to the dead-letter topic (no room). They are kept and " +
					"tried again: remove the cause, and do not delete the channel, which would delete them, too; " +
					"channel mail of topic orders is full in 2 partitions: too many messages wait between finished ones, so " +
					"it delivers no new messages of these. Nothing is lost, and it goes on when the oldest are finished or " +
					"become dead letters: see penstock channel pending and deferred; the same holds for 1 more channel",
			},
		},
		"channels lose messages and skip": {
			Facts{
				DroppingChannel: &Channel{Topic: "orders", Name: "billing", Count: 1},
				SkippingChannel: &Channel{Topic: "orders", Name: "mail", Count: 7, More: 1, Why: "2026-01-31T12:00:00Z"},
				PausedChannel:   &Channel{Topic: "orders", Name: "rests"},
				PausedTopic:     &Channel{Topic: "mail", More: 2},
				DelaysRefused:   &Channel{Topic: "later", Count: 3, More: 1},
			},
			true, true, true, true, nil, "",
			[]string{
				"; topic mail is paused: what is published waits for its channels until penstock topic unpause; the same holds " +
					"for 2 more topics; topic later refuses delayed messages in 3 partitions: as many wait as max-ranges" +
					", max-state-bytes or token-share allows. Nothing is lost, " +
					"messages without a delay are stored and delivered, and " +
					"it ends as delayed messages are finished; the same holds for 1 more topic; channel rests of topic " +
					"orders is paused: its messages wait until penstock channel unpause; " +
					"channel mail of topic orders is skipping: it discards all that is published instead of delivering it, 7 " +
					"messages since 2026-01-31T12:00:00Z, until penstock channel unskip; the same holds for 1 more " +
					"channel; channel billing of topic orders is dropping messages: retention or a quota removed 1 message " +
					"before they were finished. What was removed is gone, and the depth does not count it: make the consumers " +
					"faster, or let the topic keep more with penstock topic set",
			},
		},
		"a contested copy": {
			Facts{Cluster: served(func(c *Cluster) { c.Contested, c.FirstContested = 1, &Copy{"orders", 3, "n2", "n1"} })},
			true, true, true, false, nil, "",
			[]string{
				"unhealthy: 1 partition with a contested copy: node n2 has messages of partition 3 of topic orders that its " +
					"leader, node n1, lacks, and that were probably answered OK; nothing was cut, and node n2 does not follow; ",
				"penstock cluster force-leader orders 3 n2 --dry-run, and then force n2 or n1 to lead: what the other has beyond " +
					"that is kept aside",
			},
		},
		"contested copies": {
			Facts{Cluster: served(func(c *Cluster) { c.Contested, c.FirstContested = 2, &Copy{"orders", 3, "n2", "n1"} })},
			true, true, true, false, nil, "",
			[]string{"2 partitions with a contested copy, the first: node n2 has"},
		},
		"topics that the cluster does not know": {
			Facts{UnknownTopics: []string{"a", "b", "c"}, Cluster: served(func(*Cluster) {})},
			true, true, true, false, nil, "",
			[]string{"unhealthy: the cluster does not know a topic of this node's data directory (a and 2 more): the messages "},
		},
		"topics of others that the cluster does not know": {
			Facts{Cluster: served(func(c *Cluster) { c.WithUnknownTopics = []string{"n2", "n3"} })},
			true, true, true, false, nil, "",
			[]string{
				"unhealthy: the cluster does not know topics of the data directories of nodes n2, n3: the messages are kept " +
					"and not served; the metadata are of an earlier moment than the data, or were made anew: ",
			},
		},
		"topics of this node and of another that the cluster does not know": {
			Facts{
				UnknownTopics: []string{"a"},
				Cluster:       served(func(c *Cluster) { c.WithUnknownTopics = []string{"n2"} }),
			},
			true, true, true, false, nil, "",
			[]string{"of this node's data directory (a), and topics of the data directory of node n2: the messages are kept"},
		},
		"a short copy": {
			Facts{Cluster: served(func(c *Cluster) { c.Short, c.FirstShort = 1, &Copy{"orders", 3, "n2", "n1"} })},
			true, true, true, false, nil, "",
			[]string{
				"1 partition with a short copy: node n2 forgot the end of partition 3 of topic orders, which it had " +
					"acknowledged; it fetches that from node n1, and is not elected before it has it; wait, and do not stop or " +
					"remove node n1",
			},
		},
		"shortened copies": {
			Facts{Shortened: 2, ShortenedFor: 90 * time.Second, Cluster: served(func(*Cluster) {})},
			true, true, true, false, nil, "",
			[]string{
				"2 copies of this node are shortened, since 1m30s: they may lack what this node acknowledged, and",
				"compares itself before it leads; keep those running",
			},
		},
		"the log forgot, and the copies are not whole yet": {
			Facts{Forgotten: true, Shortened: 1, Cluster: served(func(*Cluster) {})},
			true, true, true, false, nil, "",
			[]string{"unhealthy: the commit log forgot: ", "find out who did that; 1 copy of this node is shortened"},
		},
		"the log forgot, and the copies are whole again": {
			Facts{Forgotten: true, Cluster: served(func(*Cluster) {})},
			true, true, true, true, nil, "",
			[]string{"healthy: ", "; at this node's start the commit log forgot: ", "its copies are whole again"},
		},
		"the log of a single node forgot": {
			Facts{Forgotten: true},
			true, true, true, false, nil, "",
			[]string{"messages that were answered OK may be missing; restore a backup"},
		},
		"an older directory": {
			Facts{OlderDirectory: true, Shortened: 1, Cluster: served(func(*Cluster) {})},
			true, true, true, false, nil, "",
			[]string{"unhealthy: the data directory is an older one", "find out who put it there; 1 copy of this node is"},
		},
		"an older directory with an etcd member": {
			Facts{OlderDirectory: true, StoreRenewed: "/x/older-1", Shortened: 1, Cluster: served(func(*Cluster) {})},
			true, true, true, false, nil, "",
			[]string{"its etcd member was older, too, and was added anew, and the old files are kept in /x/older-1: find out"},
		},
		"an older directory whose copies are whole again": {
			Facts{OlderDirectory: true, Cluster: served(func(*Cluster) {})},
			true, true, true, true, nil, "",
			[]string{"healthy: ", "; since this node's start the data directory is an older one"},
		},
		"no topics": {
			Facts{Cluster: served(func(c *Cluster) { c.Partitions = Partitions{} })}, true, true, true, true, nil, "", nil,
		},
		"partitions below nine tenths": {
			Facts{Topics: 8, TopicLimit: 10, Partitions: 899, PartitionLimit: 1000}, true, true, true, true, nil, "", nil,
		},
		"partitions that run out": {
			Facts{Topics: 8, TopicLimit: 10, Partitions: 900, PartitionLimit: 1000},
			true, true, true, true, nil, "",
			[]string{
				"healthy: the node serves; there are 900 partitions, and max-partitions of this node is 1000: topics and " +
					"partitions beyond them are refused, what is there goes on; delete what nobody uses, or raise",
			},
		},
		"topics that run out": {
			Facts{Topics: 10, TopicLimit: 10, Partitions: 10, PartitionLimit: 1000},
			true, true, true, true, nil, "",
			[]string{"healthy: the node serves; there are 10 topics, and max-topics of this node is 10: further topics are"},
		},
		"few descriptors": {
			Facts{FewDescriptors: true},
			true, true, true, true, nil, "",
			[]string{"healthy: the node serves; connections were refused in the last 10 minutes, because only the file descr"},
		},
		"a data directory in memory": {
			Facts{Transience: "in memory (tmpfs): everything is lost when"},
			true, true, true, true, nil, "",
			[]string{"healthy: the node serves; the data directory is in memory (tmpfs): everything is lost when"},
		},
		"a clock that differs": {
			Facts{
				Clock:   &Clock{Ahead: 5003 * time.Millisecond, From: []string{"n1", "n3"}, Wrong: true},
				Cluster: served(func(*Cluster) {}),
			},
			true, true, true, true, nil, "",
			[]string{
				"healthy: ", "; this node's clock is 5.0s ahead of those of nodes n1, n3: ",
				"it is given no leadership that another node can have", "set its clock (NTP) and restart the node",
			},
		},
		"a clock of two that differs": {
			Facts{Clock: &Clock{Ahead: -2 * time.Hour, From: []string{"n1"}}, Cluster: served(func(*Cluster) {})},
			true, true, true, true, nil, "",
			[]string{"; this node's clock is 2h0m0s behind that of node n1, and nobody can tell which is wrong: "},
		},
		"being drained": {
			Facts{Cluster: served(func(c *Cluster) { c.Draining = true })},
			true, false, true, true,
			[]string{"not-draining"},
			"", nil,
		},
		"nobody to forward to": {
			Facts{Cluster: served(func(c *Cluster) { c.Led, c.Forwarded, c.Leaderless = 0, 0, 4 })},
			true, false, true, false,
			[]string{"leads-or-forwards"},
			"",
			[]string{"unhealthy: 4 partitions without a live"},
		},
		"without a quorum of the store": {
			Facts{Cluster: served(silent)},
			true, false, false, false,
			[]string{"lease", "store", "leads-or-forwards"},
			"this node has no lease and serves nothing",
			[]string{
				"no lease", "not answered for 12.0s", "4 partitions without a live leader", "node n2 is dead",
				"node n3 is unknown since 12.0s",
			},
		},
		"a majority of the nodes that run etcd is gone": {
			Facts{Cluster: served(func(c *Cluster) { silent(c); c.StoreNodes = []string{"n1", "n2", "n3"} })},
			true, false, false, false,
			[]string{"lease", "store", "leads-or-forwards"},
			"this node has no lease and serves nothing",
			[]string{"a majority of n1, n2, n3 are lost for good: penstock rebuild-cluster)"},
		},
		"another process has the node's name": {
			Facts{Cluster: served(func(c *Cluster) { c.Leased = false })},
			true, false, false, false,
			[]string{"lease"},
			"this node has no lease and serves nothing",
			[]string{"no lease"},
		},
		"two of three nodes have joined so far": {
			Facts{Cluster: served(func(c *Cluster) { c.NotJoined = []string{"n3"} })},
			true, true, true, false, nil, "",
			[]string{"node n3 is in cluster-peers, but not in the cluster"},
		},
		"a replica is missing": {
			Facts{Cluster: served(func(c *Cluster) {
				c.UnderReplicated, c.BelowMinISR, c.Damaged, c.Dead = 3, 1, 1, []string{"n2", "n3"}
			})},
			true, true, true, false, nil, "",
			[]string{"1 partition below min_isr", "1 partition with a damaged", "3 partitions under", "nodes n2, n3 are dead"},
		},
	} {
		v := Judge(&tc.facts)
		if strings.Contains(v.Health, "damaged") && (tc.facts.Cluster == nil || tc.facts.Cluster.Damaged == 0) {
			t.Errorf("%s: a copy is called damaged, and none is: %s", name, v.Health)
		}
		if v.Live != tc.live || v.Ready != tc.ready || v.Serves != tc.serves || v.Healthy != tc.healthy || v.Why != tc.why {
			t.Errorf("%s: %+v", name, v)
		}
		var failed []string
		for _, c := range v.Checks {
			if !c.OK {
				failed = append(failed, c.Name)
			}
		}
		if !slices.Equal(failed, tc.failed) {
			t.Errorf("%s: the checks %v fail, want %v", name, failed, tc.failed)
		}
		for _, want := range tc.reasons {
			if !strings.Contains(v.Health, want) {
				t.Errorf("%s: %q does not say %q", name, v.Health, want)
			}
		}
		if v.Healthy != strings.HasPrefix(v.Health, "healthy: ") || v.Healthy != (len(v.Reasons) == 0) {
			t.Errorf("%s: %q, %q", name, v.Health, v.Reasons)
		}
	}
}

// The verbose form is that of Kubernetes: a line for each check, the result in the last one.
func TestVerbose(t *testing.T) {
	v := Judge(&Facts{Full: "the disk is full"})
	want := "[+]recovered ok: the node has started\n[+]commit-log ok: the commit log takes records\n" +
		"[-]disk failed: the disk is full\n[+]not-draining ok: the node takes work\nreadyz check failed\n"
	if got := v.Verbose("readyz"); got != want {
		t.Errorf("%s", got)
	}
}

// O2: the disk is blamed only if the cluster explains nothing.
func TestStallCause(t *testing.T) {
	leased := View{Leased: true}
	for _, tc := range []struct {
		c    *Cluster
		want string
	}{
		{nil, "The device is slow"},
		{&Cluster{View: leased, Partitions: Partitions{Count: 1, Led: 1}}, "The device is slow"},
		{&Cluster{View: View{StoreAge: 9 * time.Second}}, "no lease: the metadata store has not answered for 9.0s"},
		{&Cluster{View: leased, Partitions: Partitions{Leaderless: 2}}, "2 partitions have no live leader"},
		{&Cluster{View: leased, Partitions: Partitions{BelowMinISR: 2, Leaderless: 1}}, "2 partitions have fewer live"},
	} {
		if got := tc.c.StallCause(); !strings.Contains(got, tc.want) {
			t.Errorf("%+v: %s", tc.c, got)
		}
	}
}
