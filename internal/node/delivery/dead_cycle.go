package delivery

import (
	"slices"
	"strconv"
)

// MaxDeadHops bounds how often a message can become a dead letter and then a dead letter of the dead-letter topic, and
// so on, before somebody publishes it again (Redrive). DeadLetterCycle finds cycles when settings are changed, but two
// changes at once may close one, and each round of a cycle may double the message.
const MaxDeadHops = 8

// DeadHops returns the number of hops of a dead letter that is made of a message. value is the header of that message
// that counts them; nil: it was no dead letter. ok is false if the message must not become one again.
func DeadHops(value []byte) (hops int, ok bool) {
	if value != nil {
		n, err := strconv.Atoi(string(value))
		if err != nil || n < 0 {
			n = 1
		}
		hops = n
	}
	return hops + 1, hops < MaxDeadHops
}

// DeadLetterCycle returns the topics through which dead letters would come back to a topic, the topic first and last,
// if one of its channels sent them to the topic dead. It returns nil if they would not. targets returns the topics to
// which the channels of a topic send dead letters.
func DeadLetterCycle(topic, dead string, targets func(topic string) []string) []string {
	seen := map[string]bool{}
	var walk func(path []string) []string
	walk = func(path []string) []string {
		last := path[len(path)-1]
		switch {
		case last == topic: // the path begins with it, too
			return path
		case seen[last]:
			return nil
		}
		seen[last] = true
		for _, next := range targets(last) {
			if found := walk(append(slices.Clip(path), next)); found != nil {
				return found
			}
		}
		return nil
	}
	return walk([]string{topic, dead})
}
