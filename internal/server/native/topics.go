package native

import (
	"penstock/internal/node/names"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// maySee says whether a client may hear where a topic is: whoever may do something with it.
func maySee(who *auth.Principal, topic string) bool {
	return auth.May(who, auth.Publish, auth.Topic(topic)) ||
		auth.May(who, auth.Subscribe|auth.View, auth.SomeChannel(topic))
}

// creation is the message of a task: a Metadata request, with Create until its topics are there. It belongs to
// whoever serves the task: first work, then createTopics, then work again. A crash leaves the topics made so far.
type creation struct {
	topics []string
	who    *auth.Principal            // the client; nil: no permissions are checked
	turn   uint64                     // session.asked when the request came: a list that came later replaces this one
	failed map[string]netproto.Status // topics that could not be created
}

// serveMetadata replaces the topics of which the client hears, and tells it about them, after it has created them if
// the client asks for that.
func (s *session) serveMetadata(t task, m *wire.MetadataRequest) {
	who, err := s.principal()
	if err != nil {
		_ = s.fail(wire.TypeMetadata, t.request, netproto.StatusUnproven, "the token is no longer known")
		s.done(&t)
		return
	}
	s.asked++
	c := &creation{topics: unique(m.Topics), who: who, turn: s.asked}
	for _, name := range c.topics {
		if !maySee(who, name) {
			s.refused("metadata", "topic="+name, "UNAUTHORIZED")
		}
	}
	if t.message = c; m.Create {
		s.create(t)
		return
	}
	s.serveTopics(t.request, c)
	s.done(&t)
}

// create lets createTopics serve a creation, behind those that wait for it.
func (s *session) create(t task) {
	s.mu.Lock()
	first := len(s.creations) == 0
	s.creations = append(s.creations, t)
	s.mu.Unlock()
	if first {
		s.srv.workers.Go(s.createTopics)
	}
}

// createTopics creates the topics of all creations, one after the other. It waits for the store, which must not hold up
// what the client does with other topics, so it has a goroutine of its own. The rest is done by who has the turn.
func (s *session) createTopics() {
	for more := true; more; {
		s.mu.Lock()
		t := s.creations[0]
		s.mu.Unlock()
		s.createAll(t.message.(*creation))
		s.mu.Lock()
		s.creations[0] = task{}
		s.creations = s.creations[1:]
		more = len(s.creations) > 0
		s.inbox = append(s.inbox, t)
		s.mu.Unlock()
		if s.rouse(); s.ctx.Err() != nil {
			s.drop() // work may have ended before
		}
	}
}

// createAll creates the topics of c that the client may create.
func (s *session) createAll(c *creation) {
	c.failed = map[string]netproto.Status{}
	for _, name := range c.topics {
		if s.ctx.Err() != nil || !auth.May(c.who, auth.Publish, auth.Topic(name)) {
			continue
		}
		_, created, err := s.srv.opts.Topic(s.ctx, c.who.Maker(), name)
		if err != nil {
			c.failed[name] = statusOf(err)
		} else if created {
			s.created("topic=" + name)
		}
	}
}

// serveCreation answers a Metadata whose topics are created.
func (s *session) serveCreation(request uint64, c *creation) {
	who, err := s.principal()
	if err != nil {
		_ = s.fail(wire.TypeMetadata, request, netproto.StatusUnproven, "the token is no longer known")
		return
	}
	c.who = who
	s.serveTopics(request, c)
}

// serveTopics tells the client about topics. From now on it hears of these, unless it has sent another list meanwhile.
func (s *session) serveTopics(request uint64, c *creation) {
	if c.turn == s.asked {
		s.mu.Lock()
		s.topics = c.topics
		s.mu.Unlock()
	}
	s.tell(request, s.metadata(c.topics, c.who, c.failed), true)
}

// tell sends metadata, unless it was not asked for and the client knows it. What is too long for one frame goes in
// several, each about some of the topics; the last one is the answer. It waits for room for those before.
func (s *session) tell(request uint64, m *wire.Metadata, asked bool) {
	payload := s.told.next(m, asked)
	if payload == nil {
		return
	}
	if len(payload) > s.srv.opts.pageBytes {
		pages := paged(m, s.srv.opts.pageBytes)
		for _, p := range pages[:len(pages)-1] {
			f := netproto.Frame{Type: wire.TypeMetadataReply, Head: wire.Append(nil, p)}
			if s.conn.Send(s.ctx, &f) != nil {
				return // the connection ends
			}
		}
		payload = wire.Append(nil, pages[len(pages)-1])
	}
	_ = s.answer(wire.TypeMetadata, request, netproto.StatusOK, payload)
}

// announce tells the client what has changed of its topics.
func (s *session) announce() {
	if len(s.topics) == 0 {
		return
	}
	who, err := s.principal()
	if err != nil {
		return // the client hears of it at its next request
	}
	s.tell(0, s.metadata(s.topics, who, nil), false)
}

// metadata describes topics for an answer. failed has the topics that could not be created, with the status to answer.
func (s *session) metadata(topics []string, who *auth.Principal, failed map[string]netproto.Status) *wire.Metadata {
	p := s.srv.place()
	return p.describe(topics, func(name string) netproto.Status {
		switch {
		case !names.ValidTopic(name):
			return netproto.StatusRejected
		case !maySee(who, name):
			return netproto.StatusUnproven
		}
		return failed[name]
	})
}
