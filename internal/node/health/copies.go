package health

import "fmt"

// This file has the sentences about copies that may lack what was answered OK, or that lack it. Each says what
// happened, what it means for the data, and what to do. Not one of them calls such a copy damaged: an operator may wipe
// a damaged copy.

// missing lists what this node itself may lack, the worst first. That files were gone, or that the directory is an
// older one, counts until no copy is shortened any more: then the replicas have shown that nothing is missing, or have
// replaced it. A single node has no replica that could.
func (f *Facts) missing() (all []string) {
	switch {
	case f.Forgotten && f.Cluster == nil:
		all = append(all, forgottenWords+": messages that were answered OK may be missing; restore a backup if they are "+
			"needed, and restart the node to end this notice")
	case f.Forgotten && f.Shortened > 0:
		all = append(all, forgottenWords+": find out who did that")
	}
	if topics := f.unknownTopics(); topics != "" {
		all = append(all, "the cluster does not know "+topics+": the messages are kept and not served; the metadata are of "+
			"an earlier moment than the data, or were made anew: restore them as for a lost quorum, and wipe nothing")
	}
	if f.OlderDirectory && f.Shortened > 0 {
		all = append(all, olderWords+renewedWords(f)+": find out who put it there")
	}
	if f.Shortened > 0 {
		all = append(all, fmt.Sprintf("%s of this node %s shortened, since %s: %s may lack what this node acknowledged, and "+
			"what is missing is fetched from the other replicas, with which each compares itself before it leads; keep "+
			"those running, and do not wipe them", plural(f.Shortened, "copy"), isOrAre(int64(f.Shortened)),
			Age(f.ShortenedFor), theyOrIt(f.Shortened)))
	}
	return all
}

// unknownTopics says which nodes have topics that the cluster does not know; "": none.
func (f *Facts) unknownTopics() string {
	var own, others string
	if n := len(f.UnknownTopics); n > 0 {
		own = "a topic of this node's data directory (" + f.UnknownTopics[0]
		if n > 1 {
			own += fmt.Sprintf(" and %d more", n-1)
		}
		own += ")"
	}
	if f.Cluster != nil && len(f.Cluster.WithUnknownTopics) > 0 {
		names := f.Cluster.WithUnknownTopics
		directories := "directory"
		if len(names) > 1 {
			directories = "directories"
		}
		others = fmt.Sprintf("topics of the data %s of %s", directories, named(names))
	}
	if own != "" && others != "" {
		return own + ", and " + others
	}
	return own + others
}

const (
	forgottenWords = "the commit log forgot: files of it were gone at the start, or an older state of the disk had come " +
		"back"
	olderWords = "the data directory is an older one than the node ran on last (an older state, or the original of a " +
		"copy that ran on)"
)

// pastNote says what the start found and what has no consequence any more.
func pastNote(f *Facts) (note string) {
	if f.Forgotten {
		note = "; at this node's start " + forgottenWords + ", and its copies are whole again: find out who did that"
	}
	if f.OlderDirectory {
		note += "; since this node's start " + olderWords + renewedWords(f) + ", and its copies are whole again: find " +
			"out who put it there"
	}
	return note
}

// renewedWords says what became of the embedded etcd member of an older directory.
func renewedWords(f *Facts) string {
	if f.StoreRenewed == "" {
		return ""
	}
	return "; its etcd member was older, too, and was added anew, and the old files are kept in " + f.StoreRenewed
}

func contestedWords(c *Copy, count int) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("with a contested copy%s: node %s has messages of partition %d of topic %s that its leader, node "+
		"%s, lacks, and that were probably answered OK; nothing was cut, and node %[2]s does not follow; %[6]s",
		first(count), c.Node, c.Partition, c.Topic, c.Leader, c.choose())
}

// choose says how an operator decides between a copy and its leader.
func (c *Copy) choose() string {
	return fmt.Sprintf("compare the two with penstock cluster force-leader %s %d %s --dry-run, and then force %[3]s or "+
		"%[4]s to lead: what the other has beyond that is kept aside", c.Topic, c.Partition, c.Node, c.Leader)
}

func shortWords(c *Copy, count int) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("with a short copy%s: node %s forgot the end of partition %d of topic %s, which it had "+
		"acknowledged; it fetches that from node %s, and is not elected before it has it; wait, and do not stop or "+
		"remove node %[5]s",
		first(count), c.Node, c.Partition, c.Topic, c.Leader)
}

func first(count int) string {
	if count > 1 {
		return ", the first"
	}
	return ""
}

func theyOrIt(n int) string {
	if n == 1 {
		return "it"
	}
	return "they"
}
