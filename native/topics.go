package native

import (
	"penstock/engine"
	"penstock/native/wire"
	"penstock/netproto"
	"penstock/nsq/auth"
)

// seeing is what a client must be allowed, at least one of it, to hear where a topic is.
const seeing = auth.Publish | auth.Subscribe | auth.View

// serveMetadata replaces the topics of which the client hears, and tells it about them. It may create topics.
func (s *session) serveMetadata(request uint64, m *wire.MetadataRequest) {
	who, err := s.principal()
	if err != nil {
		_ = s.fail(wire.TypeMetadata, request, netproto.StatusUnproven, "the token is no longer known")
		return
	}
	topics := unique(m.Topics)
	s.mu.Lock()
	s.topics = topics
	s.mu.Unlock()
	failed := map[string]netproto.Status{}
	for _, name := range s.topics {
		if !allows(who, seeing, name) {
			s.refused("metadata", "topic="+name, "UNAUTHORIZED")
		}
		if m.Create && allows(who, auth.Publish, name) {
			if _, err := s.srv.opts.Topic(s.ctx, name); err != nil {
				failed[name] = statusOf(err)
			}
		}
	}
	payload := s.told.next(s.metadata(who, failed), true)
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
	if payload := s.told.next(s.metadata(who, nil), false); payload != nil {
		_ = s.answer(wire.TypeMetadata, 0, netproto.StatusOK, payload)
	}
}

// metadata describes the client's topics. failed has those that were to be created and were not.
func (s *session) metadata(who *auth.Principal, failed map[string]netproto.Status) *wire.Metadata {
	p := s.srv.place()
	return p.describe(s.topics, func(name string) netproto.Status {
		switch {
		case !engine.ValidTopicName(name):
			return netproto.StatusRejected
		case !allows(who, seeing, name):
			return netproto.StatusUnproven
		}
		return failed[name]
	})
}
