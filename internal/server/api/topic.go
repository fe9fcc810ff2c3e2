package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/web"
)

// topicRoutes returns our own routes about topics, which nsqd does not have; see channelRoutes.
func (s *Service) topicRoutes() map[string]web.Route {
	return map[string]web.Route{
		"/topic/peek":      web.On("GET", s.onTopic(serveTopicPeek), web.AdminTopic),
		"/topic/search":    web.On("GET", s.onTopic(serveTopicSearch), web.AdminTopic),
		"/topic/producers": web.On("GET", s.onTopic(s.serveProducers), web.AdminTopic),
		"/topic/trace":     web.On("GET", s.onTopic(serveTopicTrace), web.ViewTopic), // it shows nothing of the body
		"/topic/settings":  web.On("GET,POST", s.onTopic(s.serveTopicSettings), web.AdminTopic).ToLook(web.ViewTopic),
	}
}

func serveTopicPeek(t *node.Topic, r *http.Request, q url.Values) (any, error) {
	o, err := peekOptions(q)
	if err != nil {
		return nil, err
	}
	all, err := t.Peek(r.Context(), o.Partition, o.From, o.Count)
	return peekList(all), err
}

// serveTopicTrace tells the life of the message with the id in the query; see node.Topic.Trace.
func serveTopicTrace(t *node.Topic, r *http.Request, q url.Values) (any, error) {
	id, err := batch.ParseID([]byte(q.Get("id")))
	if err != nil {
		return nil, badArgument("id=%q is not a message id, which has 16 lower-case hex digits", q.Get("id"))
	}
	return t.Trace(r.Context(), id)
}

func (s *Service) serveTopicSettings(t *node.Topic, r *http.Request, _ url.Values) (any, error) {
	if r.Method == http.MethodGet {
		return t.Settings(), nil
	}
	var body topicChange
	if err := s.readSettings(r, &body); err != nil {
		return nil, err
	}
	set, err := body.over(r.Context(), t)
	if err != nil {
		return nil, err
	}
	token, err := s.MakerOf(r)
	if err != nil {
		return nil, err
	}
	return t.ConfigureAs(r.Context(), token, set)
}

// topicChange is the body of a change. It names all settings, and those that it does not name get their defaults. But
// programs that were written before there were KeepAgeMs and KeepBytes cannot name these: then they stay as they are,
// like the number of partitions. Otherwise such a program would let the topic's confirmed messages go when it changes
// something else.
type topicChange struct {
	meta.TopicSettings
	KeepAgeMs *int64 `json:"keep_age_ms"`
	KeepBytes *int64 `json:"keep_bytes"`
}

// over returns the settings that the change means for t. In a cluster, this node may not have heard yet of the version
// that the client has read elsewhere: then over waits, as far as it has to know the settings of that version.
func (ch *topicChange) over(ctx context.Context, t *node.Topic) (meta.TopicSettings, error) {
	set := ch.TopicSettings
	if ch.KeepAgeMs == nil || ch.KeepBytes == nil {
		now, err := settingsOf(ctx, t, set.Version)
		if err != nil {
			return set, err
		}
		set.KeepAgeMs, set.KeepBytes = now.KeepAgeMs, now.KeepBytes
	}
	if ch.KeepAgeMs != nil {
		set.KeepAgeMs = *ch.KeepAgeMs
	}
	if ch.KeepBytes != nil {
		set.KeepBytes = *ch.KeepBytes
	}
	return set, nil
}

const (
	maxSettingsWait = time.Second
	settingsPause   = 5 * time.Millisecond
)

// settingsOf returns the settings of this version, or ErrVersion if there are newer ones, or if this node does not hear
// of the version in time.
func settingsOf(ctx context.Context, t *node.Topic, version uint64) (meta.TopicSettings, error) {
	ctx, cancel := context.WithTimeout(ctx, maxSettingsWait)
	defer cancel()
	for {
		switch now := t.Settings(); {
		case now.Version == version:
			return now, nil
		case now.Version > version:
			return now, errs.ErrVersion
		}
		select {
		case <-time.After(settingsPause):
		case <-ctx.Done():
			return meta.TopicSettings{}, errs.ErrVersion
		}
	}
}
