package lookup

import (
	"maps"
	"time"

	"penstock/engine"
)

const (
	// ledInterval is the time between two looks at what this node leads. A look takes longer the more topics there are:
	// after one that took t the registrar rests for at least ledShare × t, which bounds it to a fiftieth of a processor.
	ledInterval = 200 * time.Millisecond
	ledShare    = 50
)

// led is what this node is a producer of: topics by name, with their channels. The values are identities: a topic that
// was deleted and created again is another one, and is registered again. A led is not changed once registrar.newest
// has it.
type led map[string]ledTopic

type ledTopic struct {
	topic    *engine.Topic
	channels map[string]*engine.Channel
}

func (t ledTopic) equal(o ledTopic) bool {
	return t.topic == o.topic && maps.Equal(t.channels, o.channels)
}

// ledNow is what this node leads at the moment: a lone node everything, a node of a cluster the topics of which it
// leads a partition.
func ledNow(e *engine.Engine) led {
	out := led{}
	add := func(t *engine.Topic) {
		channels := map[string]*engine.Channel{}
		for _, c := range t.Channels() {
			channels[c.Name()] = c
		}
		out[t.Name()] = ledTopic{t, channels}
	}
	s := e.Snapshot()
	if s == nil {
		for _, t := range e.Topics() {
			add(t)
		}
		return out
	}
	self := e.Node()
	for id, p := range s.Partitions {
		// A process that was started again does not lead what the process before it was elected for.
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
		if t, ok := e.LookupTopic(mt.Name); ok { // else this node has yet to open the partition
			add(t)
		}
	}
	return out
}

// commands are what an nsqlookupd that knows known has to be told to know next. All REGISTERs come before all
// UNREGISTERs, so that at no point it knows less than what known and next have in common.
func (next led) commands(known led) []string {
	var out []string
	for topic, t := range next {
		k, registered := known[topic]
		if registered && k.topic != t.topic {
			k.channels, registered = nil, false // it may have been deleted there, too
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
