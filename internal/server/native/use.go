package native

import (
	"errors"

	"github.com/google/uuid"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// maxKnownTopics bounds session.known.
const maxKnownTopics = 1024

// granted is the last successful check of a permission. It saves checks, since clients rarely change their topic.
type granted struct {
	who    *auth.Principal
	action auth.Permission
	topic  uuid.UUID
}

// topic returns the topic with that id, or nil. The caller has the turn (session.serving).
func (s *session) topic(id uuid.UUID) *node.Topic {
	if topic := s.known[id]; topic != nil {
		return topic
	}
	topic, ok := s.srv.engine.Catalog().LookupTopicID(id)
	if !ok {
		return nil
	}
	if len(s.known) >= maxKnownTopics {
		clear(s.known)
	}
	s.known[id] = topic
	return topic
}

// whole returns what an action with a topic concerns: all of the topic, but for publishing, which needs no channel.
func whole(action auth.Permission, topic string) auth.Resource {
	if action == auth.Publish {
		return auth.Topic(topic)
	}
	return auth.WholeTopic(topic)
}

// use returns the topic that a request names, if the client may do the action with it. Otherwise it returns why not.
func (s *session) use(t netproto.Type, id uuid.UUID, action auth.Permission) (*node.Topic, netproto.Status, string) {
	who, err := s.principal()
	if err != nil {
		return nil, netproto.StatusUnproven, "the token is no longer known"
	}
	topic := s.topic(id)
	if topic == nil {
		return nil, netproto.StatusNotLeader, "this node knows no such topic; ask for metadata"
	}
	if who == nil || s.granted == (granted{who, action, id}) {
		return topic, netproto.StatusOK, ""
	}
	if !auth.May(who, action, whole(action, topic.Name())) {
		s.refused(typeName(t), "topic="+topic.Name(), "UNAUTHORIZED")
		return nil, netproto.StatusUnproven, "the token does not allow this with the topic " + topic.Name()
	}
	s.granted = granted{who, action, id}
	return topic, netproto.StatusOK, ""
}

// failed answers a request that the engine refused. A client that has asked the wrong node is told which one leads.
func (s *session) failed(to netproto.Type, request uint64, topic *node.Topic, partition uint32, err error) {
	out := wire.Outcome{Text: err.Error()}
	status := statusOf(err)
	var fenced *fold.FencedError
	switch {
	case to != wire.TypeOpenProducer:
	case errors.As(err, &fenced):
		out.First = fenced.Tenure
	case errors.Is(err, errs.ErrTooManyProducers):
		out.First = wire.TooManyProducers
	}
	if status == netproto.StatusNotLeader {
		p := s.srv.place()
		out.Address = p.address(topic.ID(), partition)
	}
	_ = s.outcome(to, request, status, &out)
}
