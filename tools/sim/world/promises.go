package world

import "strings"

// promise is what a failure breaks, for its transcript. The numbers are those of docs/contribute/behaviours.md.
type promise struct {
	says  string   // a part of the failure's text
	means string   // the promise
	rests []string // what the event that the promise rests on says, the most telling first
}

// answers and the others are what events say: see World.tracef's callers and transcript.role.
var (
	saysAnswer   = []string{" answers put "}
	saysAnswerOf = []string{"producer ", "publisher ", "ghost ", " answers put "}
	leads        = []string{" leads "}
	finishes     = []string{" finishes ", " delivers "}
	delivers     = []string{" delivers "}
	stores       = []string{"store: "}
	places       = []string{"log to "}
)

// promises are in the order in which they are looked for. Every failure has one: TestEveryFailureBreaksAPromise.
var promises = []promise{
	{"was answered OK as", "B17: a message that was answered OK is kept and comes on every channel", saysAnswer},
	{"answered OK at", "B17: a message that was answered OK is kept", saysAnswer},
	{"was answered with", "B1: a message stands where its answer said", saysAnswer},
	{"was told that it was not stored", "B19: what was refused is stored nowhere", saysAnswer},
	{"is told now that it was not stored", "B19: what was refused is stored nowhere", delivers},
	{"which was refused", "B19: what was refused is stored nowhere", saysAnswer},
	{"was answered twice", "invariant 2: every put gets one answer", saysAnswer},
	{"has no answer after", "B84: a healthy majority answers puts in time", stores},
	{"and a majority is well", "B84: a healthy majority takes puts", stores},
	{"is refused:", "B19: a put is refused only for a reason", stores},
	{"rule 1", "B17: what a member in sync still has is not lost", saysAnswer},
	{"rule 2", "B17: what is cut from a copy is kept aside", places},
	{"rule 3", "B17: two of three nodes do not stand still for one that forgot", stores},
	{"tenure", "B19: a producer's name has one holder", saysAnswerOf},
	{"producer ", "B19: what a producer sends again is stored once, in order", saysAnswerOf},
	{"publisher ", "B19: what a publisher sends again is stored once, in order", saysAnswerOf},
	{"first delivery", "B57: first deliveries come in the order of the log", delivers},
	{"ordered by", "B57: an ordered channel keeps its order", delivers},
	{"was to come", "B32: a reader reads all messages in order", saysAnswer},
	{"before its time", "B49: a delay passes before the message comes", saysAnswer},
	{"to a consumer that was told of its end", "B47: a consumer that has ended gets nothing", delivers},
	{"taken the FIN of", "B44: what was finished does not come again to its consumer", finishes},
	{"after it was finished", "B44: what was finished does not come again to its consumer", finishes},
	{"nobody has finished it", "B68: only a FIN confirms", delivers},
	{"never delivered", "B44: every channel gets every message", places},
	{"leads epoch", "an epoch has one leader, and belongs to one process", leads},
	{"was granted to", "an epoch has one leader, and belongs to one process", leads},
	{"and its lease has ended", "B83: a leader without a lease delivers nothing and takes no FIN", leads},
	{"serves and does not lead", "B83: only the leader delivers", leads},
	{"and now", "an epoch has one leader, and belongs to one process", leads},
	{"moves back from", "invariant 1: within an epoch marks only grow", places},
	{"with an ISR of", "B2: nothing is committed without min_isr members", places},
	{"when the disk began to hang", "B16: a disk that hangs stores nothing", []string{"hangs until"}},
	{"durable", "invariant 1: committed ≤ appended, and durable ≤ appended", places},
	{"the copy was closed", "B79: a node closes only copies that are no longer its own", places},
	{"has another batch", "B94: all copies of a partition have the same bytes", places},
	{"cannot be read", "invariant 8: what is committed can be read", places},
	{"is value", "B1: an id stands for one message, on every copy and for ever", saysAnswer},
	{"which was value", "B1: an id stands for one message, on every copy and for ever", saysAnswer},
	{"the message was value", "B64: a dead letter is the message that failed", saysAnswer},
	{"is stored as", "B19: what a producer sends is stored in order", saysAnswerOf},
	{"the log ends at", "B13: no consumer sees what is not committed", delivers},
	{"holds id", "B1: the bytes of a message stay what they were", saysAnswer},
	{"got id", "B1: the bytes of a message stay what they were", saysAnswer},
	{"of another topic", "B1: a message stays in its topic", saysAnswer},
	{"of topic", "B44: a channel gets messages of its topic, as they were published", saysAnswer},
	{"its deletion was answered OK", "B72: a deleted channel is gone on every replica", stores},
	{"the deletion of topic", "B41: a topic whose deletion was answered is gone", stores},
	{"whose deletion it has answered", "B41: a topic whose deletion was answered is gone", stores},
	{"is deleted, which nobody", "a topic's data goes only by an explicit deletion", stores},
	{"is of a topic that is deleted", "B41: a topic whose deletion was answered is gone", stores},
	{"begins at", "B71: a channel gets everything from its creation on, and B39: retention keeps what it must", places},
	{"its leadership goes round", "B91: balancing ends", stores},
	{"the move of", "B89: a move ends", stores},
	{"none is added", "B90: a partition gets the replicas that it lacks", stores},
	{"begins to move", "B91: a rebalance moves only what it was asked for", stores},
	{"a rebalance copies", "B91: a rebalance copies few partitions at once", stores},
	{"loses its replicas", "B89: no replica goes before another one is in sync", stores},
	{"that wait,", "B66: the depth is right", places},
	{"with headers", "B61: headers are stored, and filters go by them", saysAnswer},
	{"sent back", "B60: what a redrive sends back comes once, on its channel", delivers},
	{"dead letters", "B64: dead letters are kept until they are sent back", delivers},
	{"a sample of", "B60: a sample is as large as it was asked for", delivers},
	{"the bit that rotted", "B37: damage is reported", []string{"a bit rots"}},
	{"damaged commit log", "F6: only rot and failing reads damage a commit log", []string{" crashes", "disk"}},
	{"and the node holds it for", "B18: a node knows that its disk hangs", []string{"hangs"}},
	{"a reader of", "B32: a reader reads all messages in order", leads},
	{"nobody can read", "B32: a reader reads all messages in order", leads},
	{"cluster is at level", "nothing newer than the cluster's level is sent or written", []string{"level"}},
	{"goes by level", "nothing newer than the cluster's level is sent or written", []string{"level"}},
	{"because of what came over it", "B10: a node sends no frame that another refuses", stores},
	{"could not open", "B42: a node starts again after any fault", []string{" crashes", " killed", "disk"}},
	{"memory is held", "invariant 10: a process gives all memory back", nil},
	{"have settings", "B70: settings are committed before they are answered", nil},
	{"settings of version", "B70: settings are committed before they are answered", []string{"configure"}},
	{"two changes of", "B70: each change of settings has a version of its own", []string{"configure"}},
	{"cannot be", "every setting takes the values within its bounds", nil},
	{"not whole", "B11, B42: after the faults everything comes right again", []string{"the faults end"}},
	{"time stands still", "the engine comes to rest", nil},
	{"without an end", "the engine comes to rest", nil},
	{"panic:", "the engine does not panic", nil},
	{"BUG of the simulation", "the simulation itself is right", nil},
}

const unnamed = "a rule of package world"

// brokenBy is the promise that a failure breaks.
func brokenBy(violation string) *promise {
	for i := range promises {
		if strings.Contains(violation, promises[i].says) {
			return &promises[i]
		}
	}
	return &promise{says: violation, means: unnamed}
}
