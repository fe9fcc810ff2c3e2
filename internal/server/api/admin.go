package api

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/server/web"
)

func (s *Service) serveTopicCreate(r *http.Request, q url.Values) (any, error) {
	name, err := web.TopicName(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	// partitions and replicas are our own parameters. An existing topic keeps what it has.
	var o node.TopicOptions
	if q.Has("partitions") {
		if o.Partitions, err = web.Count(q, "partitions", node.MaxPartitions, "INVALID_PARTITIONS"); err != nil {
			return nil, err
		}
	}
	if q.Has("replicas") {
		if o.Replicas, err = web.Count(q, "replicas", node.MaxReplicas, "INVALID_REPLICAS"); err != nil {
			return nil, err
		}
	}
	if o.MadeBy, err = s.MakerOf(r); err != nil {
		return nil, err
	}
	if q.Has("made_by") { // an administrator makes a topic for somebody else
		if o.MadeBy != "" && o.MadeBy != q.Get("made_by") {
			return nil, web.Fail(403, "UNAUTHORIZED")
		}
		o.MadeBy = q.Get("made_by")
	}
	_, err = s.opts.Lookups.CreateTopic(r.Context(), name, o)
	return nil, err
}

func (s *Service) serveTopicDelete(r *http.Request, q url.Values) (any, error) {
	began := time.Now()
	name, err := web.TopicName(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	if _, ok := s.engine.Catalog().LookupTopic(name); ok && s.hiddenHere(name, began) {
		return nil, nil
	}
	return nil, s.deleted.Answer(name, began, s.engine.DeleteTopic(r.Context(), name))
}

// hiddenHere reports whether a tombstone currently hides this node from lookups of the topic. nsqadmin removes a topic
// from one node by setting a tombstone at the lookup service and then deleting the topic at the node. Here that delete
// would remove the topic from every node.
func (s *Service) hiddenHere(topic string, now time.Time) bool {
	snap := s.engine.Snapshot()
	if snap == nil {
		return false
	}
	until, ok := snap.Tombstones[meta.TombstoneKey{Topic: topic, Node: s.engine.Node().ID}]
	return ok && now.Before(until)
}

// findTopic returns the topic that the query names, which must exist.
func (s *Service) findTopic(q url.Values, invalid string) (*node.Topic, error) {
	name, err := web.TopicName(q, invalid)
	if err != nil {
		return nil, err
	}
	t, ok := s.engine.Catalog().LookupTopic(name)
	if !ok {
		return nil, web.Fail(404, "TOPIC_NOT_FOUND")
	}
	return t, nil
}

// onTopic serves a request about an existing topic.
func (s *Service) onTopic(do func(t *node.Topic, r *http.Request, q url.Values) (any, error)) web.Endpoint {
	return func(r *http.Request, q url.Values) (any, error) {
		t, err := s.findTopic(q, "INVALID_TOPIC")
		if err != nil {
			return nil, err
		}
		return do(t, r, q)
	}
}

func (s *Service) topicVerb(do func(*node.Topic, context.Context) error) web.Endpoint {
	return s.onTopic(func(t *node.Topic, r *http.Request, _ url.Values) (any, error) { return nil, do(t, r.Context()) })
}

// channelArgs returns the topic and the channel name of the query. As in nsqd, it checks both names before it looks for
// the topic.
func (s *Service) channelArgs(q url.Values) (*node.Topic, string, error) {
	if _, err := web.TopicName(q, "INVALID_ARG_TOPIC"); err != nil {
		return nil, "", err
	}
	name, err := web.ChannelName(q)
	if err != nil {
		return nil, "", err
	}
	t, err := s.findTopic(q, "INVALID_ARG_TOPIC")
	return t, name, err
}

func (s *Service) serveChannelCreate(r *http.Request, q url.Values) (any, error) {
	t, name, err := s.channelArgs(q)
	if err != nil {
		return nil, err
	}
	if !q.Has("from") {
		_, err = t.CreateChannel(r.Context(), name)
		return nil, err
	}
	from, err := startAt("from", q.Get("from"))
	if err != nil {
		return nil, err
	}
	_, err = t.CreateChannelFrom(r.Context(), name, from)
	return nil, err
}

func (s *Service) serveChannelDelete(r *http.Request, q url.Values) (any, error) {
	t, name, err := s.channelArgs(q)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	return nil, s.deleted.Answer(t.Name()+"/"+name, began, t.DeleteChannel(r.Context(), name))
}

func (s *Service) channelVerb(do func(*node.Channel, context.Context) error) web.Endpoint {
	return s.onChannel(func(c *node.Channel, r *http.Request, _ url.Values) (any, error) {
		return nil, do(c, r.Context())
	})
}

// levelFatal is above every level that is logged: as in nsqd, "fatal" silences all others.
const levelFatal = slog.Level(12)

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"error": slog.LevelError, "fatal": levelFatal,
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	case l < levelFatal:
		return "error"
	}
	return "fatal"
}

// serveSettings lists the node's settings. What PUT /config has changed is shown as it is now.
func (s *Service) serveSettings(*http.Request, url.Values) (any, error) { return s.settingsHere(), nil }

// settingsHere lists the settings of this node.
func (s *Service) settingsHere() *Settings {
	out := &Settings{Settings: []Setting{}}
	if s.opts.ConfigList != nil {
		out.Settings = s.opts.ConfigList()
	}
	for i := range out.Settings {
		switch row := &out.Settings[i]; row.Setting {
		case "log_level":
			row.Value = levelName(s.opts.LogLevel.Level())
		case "lookupd_tcp_address":
			row.Value = s.opts.Lookups.Nsqlookupds()
		}
	}
	return out
}

func (s *Service) serveConfig(r *http.Request, _ url.Values) (any, error) {
	option := r.PathValue("option")
	if r.Method == http.MethodPut {
		if err := s.setConfig(option, r); err != nil {
			return nil, err
		}
	}
	switch option {
	case "log_level":
		return levelName(s.opts.LogLevel.Level()), nil
	case "nsqlookupd_tcp_addresses":
		return s.opts.Lookups.Nsqlookupds(), nil
	}
	if s.opts.ConfigValues != nil && r.Method == http.MethodGet {
		if v, ok := s.opts.ConfigValues(option); ok {
			return v, nil
		}
	}
	return nil, web.Fail(400, "INVALID_OPTION")
}

func (s *Service) setConfig(option string, r *http.Request) error {
	most := s.settings().MaxMessageBytes
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(most)+1))
	if err != nil {
		return web.Fail(500, "INTERNAL_ERROR")
	}
	if len(body) > most || len(body) == 0 {
		return web.Fail(413, "INVALID_VALUE")
	}
	switch option {
	case "log_level":
		level, ok := logLevels[strings.ToLower(strings.TrimSpace(string(body)))]
		if !ok {
			return web.Fail(400, "INVALID_VALUE")
		}
		s.opts.LogLevel.Set(level)
	case "nsqlookupd_tcp_addresses":
		var list []string
		if json.Unmarshal(body, &list) != nil {
			return web.Fail(400, "INVALID_VALUE")
		}
		if s.opts.Lookups.SetNsqlookupds(list) != nil {
			return web.Fail(400, "INVALID_VALUE")
		}
	default:
		return web.Fail(400, "INVALID_OPTION")
	}
	return nil
}
