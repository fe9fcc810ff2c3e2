package nsq

import (
	"maps"
	"time"

	"penstock/engine"
)

const (
	// ledInterval is how often this node looks at what it leads, to tell nsqlookupds of changes. Looking takes longer the more topics
	// there are; ledShare keeps it below a fiftieth of a processor.
	ledInterval = 200 * time.Millisecond
	ledShare    = 50
)

// led is what this node is a producer of: topics with channels. The values are identities: a topic that was deleted and made again
// is another one, and is registered again. It is not changed once published.
type led map[string]ledTopic

type ledTopic struct {
	topic    *engine.Topic
	channels map[string]*engine.Channel
}

func (t ledTopic) equal(o ledTopic) bool {
	return t.topic == o.topic && maps.Equal(t.channels, o.channels)
}

// ledNow is what the engine leads at the moment: alone everything, in a cluster the topics of which it leads a partition.
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
		// A process that was started again does not lead what the one before was elected for.
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
		if t, ok := e.LookupTopic(mt.Name); ok { // else this node has not followed yet
			add(t)
		}
	}
	return out
}

// commands are what an nsqlookupd has to be told so that it knows next after it knew known, in an order in which nobody is told of
// less than is there both before and after.
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
