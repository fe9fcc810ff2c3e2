package lookup

import (
	"maps"
	"time"

	"penstock/internal/node"
)

const (
	// ledInterval is the time between two looks at what this node leads. A look takes longer the more topics there are.
	// So after a look that took t the registrar waits for at least ledShare × t, which limits it to a fiftieth of a
	// processor.
	ledInterval = 200 * time.Millisecond
	ledShare    = 50
)

// led is the set of topics that this node produces, by name, with their channels. The values are pointers, compared by
// identity: a topic that was deleted and created again is a different topic, and is registered again. A led is
// immutable once it is in registrar.newest.
type led map[string]ledTopic

type ledTopic struct {
	topic    *node.Topic
	channels map[string]*node.Channel
}

func (t ledTopic) equal(o ledTopic) bool {
	return t.topic == o.topic && maps.Equal(t.channels, o.channels)
}

// ledNow returns what this node leads at the moment. A lone node leads every topic; a node of a cluster leads the
// topics of which it leads at least one partition.
func ledNow(e *node.Engine) led {
	out := led{}
	add := func(t *node.Topic) {
		channels := map[string]*node.Channel{}
		for _, c := range t.Channels() {
			channels[c.Name()] = c
		}
		out[t.Name()] = ledTopic{t, channels}
	}
	s := e.Snapshot()
	if s == nil {
		for _, t := range e.Catalog().Topics() {
			add(t)
		}
		return out
	}
	self := e.Node()
	for id, p := range s.Partitions.All() {
		// A restarted process does not lead the partitions that its predecessor was elected for.
		if p.State.Leader != self.ID || p.State.Boot != self.Boot {
			continue
		}
		mt := s.Topics[id.Topic]
		if mt == nil {
			continue
		}
		if _, seen := out[mt.Name]; seen {
			continue
		}
		if t, ok := e.Catalog().LookupTopic(mt.Name); ok { // else this node has not opened the partition yet
			add(t)
		}
	}
	return out
}

// commands returns the commands that take an nsqlookupd from the registrations in known to those in next. All REGISTERs
// come before all UNREGISTERs, so that the registrations that known and next share are in place throughout.
func (next led) commands(known led) []string {
	var out []string
	for topic, t := range next {
		k, registered := known[topic]
		if registered && k.topic != t.topic {
			k.channels, registered = nil, false // the nsqlookupd may have deleted the old topic, too
		}
		if !registered && len(t.channels) == 0 {
			out = append(out, "REGISTER "+topic+"\n")
		}
		for channel, c := range t.channels {
			if k.channels[channel] != c {
				out = append(out, "REGISTER "+topic+" "+channel+"\n")
			}
		}
	}
	for topic, k := range known {
		t, still := next[topic]
		for channel := range k.channels {
			if _, kept := t.channels[channel]; !kept {
				out = append(out, "UNREGISTER "+topic+" "+channel+"\n")
			}
		}
		if !still {
			out = append(out, "UNREGISTER "+topic+"\n")
		}
	}
	return out
}
