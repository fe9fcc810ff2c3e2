package auth

// Resource is what a client wants to do something with. Its zero value is the node with all that it has.
type Resource struct {
	scope          scope
	topic, channel string
}

// scope says what of a grant must cover a resource.
type scope uint8

const (
	ofNode      scope = iota // all topics and all channels
	ofTopic                  // the topic
	ofAll                    // the topic, and all channels that it could have
	ofChannel                // the topic and the channel
	ofSome                   // the topic, and at least one channel that it could have
	ofSomeTopic              // at least one topic that there could be, and all its channels
)

// Node is the node and the cluster, with all their topics: Admin is to administer them, View to look at them.
func Node() Resource { return Resource{} }

// Topic is a topic without regard to its channels: to publish needs no more.
func Topic(name string) Resource { return Resource{scope: ofTopic, topic: name} }

// WholeTopic is a topic with all channels that it could have. Whoever has rights on some channels only has none on it.
// Subscribe is to read all its messages, on the native port; View to look at its settings and traces; Admin to create,
// empty, pause and delete it, to peek at it, and to change its settings.
func WholeTopic(name string) Resource { return Resource{scope: ofAll, topic: name} }

// Channel is one channel of a topic.
func Channel(topic, name string) Resource {
	return Resource{scope: ofChannel, topic: topic, channel: name}
}

// SomeChannel is at least one channel that the topic could have: a client with a right on one may hear of the topic.
func SomeChannel(topic string) Resource { return Resource{scope: ofSome, topic: topic} }

// SomeTopic is at least one topic that there could be, with all its channels.
func SomeTopic() Resource { return Resource{scope: ofSomeTopic} }

// May says whether a client may do this, or one of several actions, with a resource. All ports and protocols ask it and
// nothing else. who is nil where clients have to prove nothing: they may do everything.
func May(who *Principal, action Permission, on Resource) bool {
	if who == nil {
		return true
	}
	for i := range who.grants {
		if g := &who.grants[i]; g.permissions&action != 0 && g.covers(on, who.file != nil) {
			return true
		}
	}
	return false
}

// covers says whether a grant is for a resource. fromFile says that the grant is one of the token file.
func (g *grant) covers(on Resource, fromFile bool) bool {
	switch on.scope {
	case ofNode:
		return anyMatchesAll(g.topics) && anyMatchesAll(g.channels)
	case ofTopic:
		// A server's channel patterns must match "", as in nsqd. Those of the token file restrict only channels.
		return matches(g.topics, on.topic) && (fromFile || matches(g.channels, ""))
	case ofAll:
		return matches(g.topics, on.topic) && anyMatchesAll(g.channels)
	case ofChannel:
		return matches(g.topics, on.topic) && matches(g.channels, on.channel)
	case ofSome:
		return matches(g.topics, on.topic) && len(g.channels) > 0
	case ofSomeTopic:
		return anyMatchesAll(g.channels)
	}
	return false // a scope that nobody has thought of here is nobody's
}
