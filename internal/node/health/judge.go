package health

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Facts is what a node knows about itself and its cluster at one moment.
type Facts struct {
	Node    string // node_id; "" if the node has no name
	Stage   string // what the start of the node is doing now; "": it has started
	Closing bool   // the node is being shut down

	// Failure says why nothing more is stored; "": the commit log works. Curable says that a restart ends this.
	Failure string
	Curable bool
	// Disk says why the disk counts as failed; "": it does not. Full says that it has no room.
	Disk string
	Full string
	// Damage lists stored data that does not read back; "": none is known.
	Damage string
	// ClockAhead is how far the wall clock is ahead of the engine's clock, which does not follow its steps; below 0:
	// behind. It is a note if it is a second or more.
	ClockAhead time.Duration
	// Clock is how the engine's clock differs from those of other nodes; nil: it does not. A note.
	Clock *Clock
	// DiskState is slow if the disk is, or hung a while ago, and hung if no write comes back; "" otherwise. That is a
	// note until Disk says why the disk counts as failed.
	DiskState string
	// AsideMessages is how many messages that cuts took from copies are kept aside. That is no trouble, but a note.
	AsideMessages int64

	// FewDescriptors: connections were refused in the last 10 minutes, to keep file descriptors for the node's own files.
	// A note.
	FewDescriptors bool

	// AuthSilence says that no auth server answers; "": they do, or there are none. A note.
	AuthSilence string

	// StateBytes is what deferred messages and confirmations cost in memory, of StateLimit that this node allows. What
	// other nodes lead is stored here beyond the limit, too: a note.
	StateBytes, StateLimit int64

	// Topics and Partitions are those that this node lists, of which TopicLimit and PartitionLimit are allowed; 0: nobody
	// has said. That few are left is a note.
	Topics, TopicLimit, Partitions, PartitionLimit int

	// Transience says why the data directory does not last, as aio.Info has it; "": it does. A note.
	Transience string

	// The first channel, by the name of its topic and its own, that has dead letters which cannot be moved, that delivers
	// nothing new because it is full, that lost messages lately, that skips, that is paused and that is starved; the first
	// topic that is paused, and that is over its quota; nil: there is none. That is a note, too.
	AsideLetters, FullChannel, DroppingChannel, SkippingChannel, PausedChannel *Channel
	StarvedChannel                                                             *Channel
	PausedTopic, QuotaTopic, DelaysRefused                                     *Channel // without a Name

	// ReadOnlyTopic is the first topic with partitions that store nothing new, without a Name; nil: there is none. That
	// is a trouble.
	ReadOnlyTopic *Channel

	// What may be missing here, although this node acknowledged it. Failure says if files were taken away under it.
	Forgotten      bool          // the commit log's files were gone at the start, or older ones had come back
	OlderDirectory bool          // the data directory is not the one that the node ran on last
	UnknownTopics  []string      // topics of the data directory that the cluster does not know, sorted
	StoreRenewed   string        // where the files of an older embedded etcd member are kept that was added anew
	Shortened      int           // copies that may lack what this node acknowledged
	ShortenedFor   time.Duration // how long this node has had such copies

	// Certificates are the files of certificates that this node uses, and Wall is the wall clock that decides whether they
	// are valid. One that ends soon is a note, one that nobody takes a trouble.
	Certificates []Certificate
	Wall         time.Time

	Cluster *Cluster // nil: a single node, or one that has not joined yet
}

// Check is one condition of readiness.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Says string `json:"says"` // why it failed, or what was found
}

// Verdict is what a node says about itself. Its JSON is the answer of /health.
type Verdict struct {
	Node    string `json:"node"`
	Healthy bool   `json:"healthy"` // nothing is wrong with the node or with what it knows of the cluster
	Health  string `json:"health"`  // one sentence
	// Reasons are the parts of the sentence if something is wrong, the worst first; empty: nothing is.
	Reasons []string `json:"reasons"`

	// Note is the part of the sentence that is about clients although nothing is wrong here; "": there is none.
	Note string `json:"note,omitempty"`

	Live   bool    `json:"live"`   // false: a restart cures what is wrong, and nothing else does
	Ready  bool    `json:"ready"`  // every check is OK: clients should be sent here
	Checks []Check `json:"checks"` // of readiness

	// Serves is false if the node can serve nothing at all, or has data that does not read back: /ping says NOK. Why is
	// the reason.
	Serves bool   `json:"serves"`
	Why    string `json:"why,omitempty"`

	// StoreAgeMs is the time since the metadata store last answered this node, which is the age of all that is said
	// about other nodes; -1: a single node.
	StoreAgeMs int64 `json:"store_age_ms"`
}

// Judge decides what the facts mean. It is a pure function.
func Judge(f *Facts) Verdict {
	v := Verdict{
		Node: f.Node, Live: f.Failure == "" || !f.Curable, Checks: checks(f), Reasons: []string{}, StoreAgeMs: -1,
	}
	if f.Cluster != nil {
		v.StoreAgeMs = f.Cluster.StoreAge.Milliseconds()
	}
	v.Ready = true
	for _, c := range v.Checks {
		v.Ready = v.Ready && c.OK
		counted := c.Name == checkLeads && f.Cluster.Leaderless > 0 // troubles says it better
		if !c.OK && c.Name != checkDrain && !counted {
			v.Reasons = append(v.Reasons, c.Says)
		}
	}
	v.Why = whyNothing(f)
	if v.Serves = v.Why == ""; f.Damage != "" && v.Serves {
		v.Serves, v.Why = false, f.Damage
	}
	if f.Damage != "" {
		v.Reasons = append(v.Reasons, f.Damage)
	}
	if c := f.ReadOnlyTopic; c != nil {
		v.Reasons = append(v.Reasons, c.ReadOnlyWords())
	}
	v.Reasons = append(v.Reasons, f.missing()...)
	v.Reasons = append(v.Reasons, f.refused()...)
	v.Reasons = append(v.Reasons, f.Cluster.troubles()...)
	v.Healthy = len(v.Reasons) == 0
	v.Health, v.Note = sentence(f, &v), f.AuthSilence
	return v
}

// whyNothing returns why the node can serve nothing at all; "": it can serve something.
func whyNothing(f *Facts) string {
	for _, c := range checks(f) {
		if !c.OK && c.Name != checkDrain && c.Name != checkLeads {
			return c.Says
		}
	}
	return ""
}

// Names of the checks.
const (
	checkRecovered = "recovered"
	checkLog       = "commit-log"
	checkDisk      = "disk"
	checkLease     = "lease"
	checkStore     = "store"
	checkDrain     = "not-draining"
	checkLeads     = "leads-or-forwards"
)

// checks returns the conditions of readiness, the most basic ones first. Before the node has recovered, there is only
// the first.
func checks(f *Facts) []Check {
	var out []Check
	add := func(name string, ok bool, failed, found string) {
		c := Check{Name: name, OK: ok, Says: failed}
		if ok {
			c.Says = found
		}
		out = append(out, c)
	}
	add(checkRecovered, f.Stage == "", "the node is starting: "+f.Stage, "the node has started")
	if f.Stage != "" {
		return out
	}
	add(checkLog, f.Failure == "", f.Failure, "the commit log takes records")
	add(checkDisk, f.Disk == "" && f.Full == "", cmp.Or(f.Disk, f.Full), "the disk is writable")
	c := f.Cluster
	if c == nil {
		add(checkDrain, !f.Closing, "the node is shutting down", "the node takes work")
		return out
	}
	silent := "the metadata store has not answered for " + Age(c.StoreAge)
	if !c.Leased && len(c.StoreNodes) > 0 {
		silent += " (if the disks or the etcd directories of a majority of " + strings.Join(c.StoreNodes, ", ") +
			" are lost for good: penstock rebuild-cluster)"
	}
	add(checkLease, c.Leased, "this node has no lease and serves nothing", "the node has a lease")
	add(checkStore, !c.StoreSilent(), silent, "the metadata store answered "+Age(c.StoreAge)+" ago")
	add(checkDrain, !f.Closing && !c.Draining, drainWords(f.Closing), "the node takes leaderships")
	add(checkLeads, c.Count == 0 || c.Led+c.Forwarded > 0,
		fmt.Sprintf("none of %s is led by this node or by one that it is connected to", plural(c.Count, "partition")),
		fmt.Sprintf("leads %d and forwards to %d of %s", c.Led, c.Forwarded, plural(c.Count, "partition")))
	return out
}

func drainWords(closing bool) string {
	if closing {
		return "the node is shutting down"
	}
	return "the node is being drained"
}

// troubles lists what is wrong with the cluster, besides the checks of this node, the worst first. c may be nil.
func (c *Cluster) troubles() (all []string) {
	if c == nil {
		return nil
	}
	if c.Store.Full != "" { // what is wrong besides may not be mended before this is
		all = append(all, c.Store.Full)
	}
	for _, t := range []struct {
		count int
		words string
	}{
		{c.Leaderless, "without a live leader"},
		{c.BelowMinISR, "below min_isr: no writes"},
		{c.Contested, contestedWords(c.FirstContested, c.Contested)},
		{c.Damaged, "with a damaged replica"},
		{c.Short, shortWords(c.FirstShort, c.Short)},
		{c.UnderReplicated, "under-replicated"},
	} {
		if t.count > 0 {
			all = append(all, fmt.Sprintf("%s %s", plural(t.count, "partition"), t.words))
		}
	}
	if words := c.unconnectedWords(); words != "" {
		all = append(all, words)
	}
	if len(c.Dead) > 0 {
		all = append(all, c.deadWords())
	}
	if len(c.Unknown) > 0 {
		all = append(all, fmt.Sprintf("%s unknown since %s", nodes(c.Unknown), Age(c.UnknownFor)))
	}
	if c.Store.Fault != "" {
		all = append(all, "the metadata store has a member less: "+c.Store.Fault)
	}
	if apart := c.apart(); len(apart) > 0 {
		all = append(all, "the etcd member on this node cannot reach "+strings.Join(apart, ", ")+
			": if another one fails, the metadata store may have no majority; look at the network and at cluster-peers")
	}
	if len(c.NotJoined) > 0 {
		all = append(all, nodes(c.NotJoined)+" in cluster-peers, but not in the cluster")
	}
	return all
}

// apart returns the members of the metadata store that this node's member cannot reach, without those whose nodes are
// said to be dead or unknown anyway.
func (c *Cluster) apart() (out []string) {
	for _, member := range c.Store.Apart {
		name, _, _ := strings.Cut(member, " ")
		if !slices.Contains(c.Dead, name) && !slices.Contains(c.Unknown, name) {
			out = append(out, member)
		}
	}
	return out
}

// StallCause says why puts may wait although nothing is stored. It blames the disk only if the cluster explains nothing
// (O2). c may be nil: a single node.
func (c *Cluster) StallCause() string {
	switch {
	case c != nil && !c.Leased:
		return "This node has no lease: the metadata store has not answered for " + Age(c.StoreAge)
	case c != nil && c.BelowMinISR > 0:
		return plural(c.BelowMinISR, "partition") + " have fewer live in-sync replicas than min_isr demands"
	case c != nil && c.Leaderless > 0:
		return plural(c.Leaderless, "partition") + " have no live leader"
	}
	return "The device is slow, full, or the commit log has no room"
}

// sentence says in one sentence how the node and the cluster are.
func sentence(f *Facts, v *Verdict) string {
	switch c := f.Cluster; {
	case !v.Healthy:
		return "unhealthy: " + strings.Join(v.Reasons, "; ") + notes(f)
	case c == nil:
		return "healthy: the node serves" + drainNote(f) + notes(f)
	default:
		return fmt.Sprintf("healthy: all %s live, all %s led and in sync%s",
			are(c.NodeCount, "node"), are(c.Count, "partition"), drainNote(f)+pastNote(f)+notes(f))
	}
}

func drainNote(f *Facts) string {
	if f.Closing || f.Cluster != nil && f.Cluster.Draining {
		return "; " + drainWords(f.Closing)
	}
	return ""
}

// notes says what would stop if one more node failed, what does not last or suffice, how the disk and the clock are,
// what is kept aside, and which channels do not go on.
func notes(f *Facts) string {
	note := ""
	if f.Cluster != nil {
		note = f.Cluster.Redundancy.words()
	}
	return note + authNote(f) + certificatesNote(f) + transienceNote(f) + descriptorsNote(f) + stateNote(f) +
		limitsNote(f) + groundNote(f) + asideNote(f) + channelNotes(f)
}

// leastClockError is the smallest difference between the wall clock and the engine's that is worth a note. Time
// services correct smaller ones all the time.
const leastClockError = time.Second

// groundNote says that the disk is slow, and that the wall clock is not what the engine's clock began with.
func groundNote(f *Facts) (note string) {
	switch f.DiskState {
	case "slow":
		note = "; the disk is slow, or hung a while ago: publishing waits for it, and this node is given no leadership " +
			"that another can have"
	case "hung":
		note = "; the disk hangs: no write comes back, and nothing is answered OK until one does"
	}
	d, word := f.ClockAhead, "ahead of"
	if d < 0 {
		d, word = -d, "behind"
	}
	if d >= leastClockError {
		note += fmt.Sprintf("; the wall clock is %s %s the engine's clock, which does not follow its steps: the times of "+
			"messages and delays are by the engine's, until a restart; correct the wall clock first", Age(d), word)
	}
	if f.Clock != nil {
		note += "; " + f.Clock.Words()
	}
	return note
}

// descriptorsNote says that connections were refused for want of file descriptors.
func descriptorsNote(f *Facts) string {
	if !f.FewDescriptors {
		return ""
	}
	return "; connections were refused in the last 10 minutes, because only the file descriptors that are kept for the " +
		"node's own files were left: raise the limit of open files (LimitNOFILE of a unit, ulimit -n), or lower " +
		"max-connections"
}

// stateNote says that the node follows partitions whose state needs more memory than its limit.
func stateNote(f *Facts) string {
	if f.StateBytes <= f.StateLimit {
		return ""
	}
	return fmt.Sprintf("; delayed messages and confirmations take %d MiB of memory, and max-state-bytes of this node is "+
		"%d MiB: it follows leaders that allow more, and refuses nothing of theirs; give it the same limit as the others "+
		"and the memory for it, or lower theirs", f.StateBytes>>20, f.StateLimit>>20)
}

// NearLimit says whether nine tenths or more are taken of what a limit allows; a limit of 0 is none.
func NearLimit(count, limit int) bool { return limit > 0 && count >= limit-limit/10 }

// limitsNote says that few topics or partitions more may be made.
func limitsNote(f *Facts) (note string) {
	for _, x := range []struct {
		what, setting, refused string
		count, limit           int
	}{
		{"topics", "max-topics", "further topics are", f.Topics, f.TopicLimit},
		{"partitions", "max-partitions", "topics and partitions beyond them are", f.Partitions, f.PartitionLimit},
	} {
		if NearLimit(x.count, x.limit) {
			note += fmt.Sprintf("; there are %d %s, and %s of this node is %d: %s refused, what is there goes on; delete what "+
				"nobody uses, or raise the limit on all nodes, which takes memory", x.count, x.what, x.setting, x.limit, x.refused)
		}
	}
	return note
}

// authNote says that no auth server answers.
func authNote(f *Facts) string {
	if f.AuthSilence == "" {
		return ""
	}
	return "; " + f.AuthSilence
}

// transienceNote says that the data directory does not last.
func transienceNote(f *Facts) string {
	if f.Transience == "" {
		return ""
	}
	return "; the data directory is " + f.Transience
}

// asideNote says that cuts took messages from copies on this node.
func asideNote(f *Facts) string {
	if f.AsideMessages == 0 {
		return ""
	}
	return fmt.Sprintf("; %s that cuts took %s kept aside: see penstock aside list",
		plural(int(f.AsideMessages), "message"), isOrAre(f.AsideMessages))
}

func isOrAre(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// maxNamedCount is how many nodes a sentence names.
const maxNamedCount = 8

func nodes(names []string) string {
	if len(names) == 1 {
		return named(names) + " is"
	}
	return named(names) + " are"
}

func named(names []string) string {
	shown := strings.Join(names[:min(len(names), maxNamedCount)], ", ")
	if len(names) == 1 {
		return "node " + shown
	}
	if more := len(names) - maxNamedCount; more > 0 {
		shown = fmt.Sprintf("%s and %d more", shown, more)
	}
	return "nodes " + shown
}

func plural(n int, what string) string {
	switch {
	case n != 1 && what == "copy":
		what = "copies"
	case n != 1:
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func are(n int, what string) string {
	if n == 1 {
		return plural(n, what) + " is"
	}
	return plural(n, what) + " are"
}

// Text returns the sentence of an error on one line, without the names of packages, which mean nothing to an operator.
func Text(err error) string {
	return packageNames.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "$1")
}

var packageNames = regexp.MustCompile(`(^|: |\()(?:(?:aio|aside|clog|core|engine|meta|replicate|segment): )+`)

// Age formats the age of a fact: in tenths of a second below a minute, and in seconds above.
func Age(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Truncate(time.Second).String()
}

// Verbose returns the checks in the form of Kubernetes' verbose probes, one a line, and the result in the last line.
// name is that of the probe.
func (v *Verdict) Verbose(name string) string {
	var b strings.Builder
	for _, c := range v.Checks {
		if c.OK {
			fmt.Fprintf(&b, "[+]%s ok: %s\n", c.Name, c.Says)
		} else {
			fmt.Fprintf(&b, "[-]%s failed: %s\n", c.Name, c.Says)
		}
	}
	result := "passed"
	if !v.Ready {
		result = "failed"
	}
	fmt.Fprintf(&b, "%s check %s\n", name, result)
	return b.String()
}
