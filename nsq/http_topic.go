package nsq

import (
	"net/http"
	"net/url"

	"penstock/batch"
	"penstock/engine"
	"penstock/nsq/internal/web"
)

// topicRoutes returns our own routes about topics, which nsqd does not have; see channelRoutes.
func (s *Server) topicRoutes() map[string]web.Route {
	return map[string]web.Route{
		"/topic/peek":     web.On("GET", s.serveTopicPeek, web.Admin),
		"/topic/trace":    web.On("GET", s.serveTopicTrace, web.View), // it shows nothing of the message itself
		"/topic/settings": web.On("GET,POST", s.serveTopicSettings, web.Admin).ToLook(web.View),
	}
}

func (s *Server) serveTopicPeek(r *http.Request, q url.Values) (any, error) {
	t, err := s.findTopic(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	o, err := peekOptions(q)
	if err != nil {
		return nil, err
	}
	all, err := t.Peek(r.Context(), o.Partition, o.From, o.Count)
	if err != nil {
		return nil, channelFailure(err)
	}
	return peekList(all), nil
}

// serveTopicTrace tells the life of the message with the id in the query; see engine.Topic.Trace.
func (s *Server) serveTopicTrace(r *http.Request, q url.Values) (any, error) {
	t, err := s.findTopic(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	id, err := batch.ParseID([]byte(q.Get("id")))
	if err != nil {
		return nil, badArgument("id=%q is not a message id, which has 16 lower-case hex digits", q.Get("id"))
	}
	tr, err := t.Trace(r.Context(), id)
	if err != nil {
		return nil, channelFailure(err)
	}
	return tr, nil
}

func (s *Server) serveTopicSettings(r *http.Request, q url.Values) (any, error) {
	t, err := s.findTopic(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodGet {
		return t.Settings(), nil
	}
	var set engine.TopicSettings
	if err := readSettings(r, &set); err != nil {
		return nil, err
	}
	if set, err = t.Configure(r.Context(), set); err != nil {
		return nil, channelFailure(err)
	}
	return set, nil
}
