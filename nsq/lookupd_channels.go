package nsq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine"
	"penstock/nsq/internal/web"
)

const (
	// lookupdAskTime bounds how long a new topic waits for nsqlookupds to name its channels. Its first publish waits with it.
	lookupdAskTime = 2 * time.Second

	// maxChannelsBytes bounds one nsqlookupd's answer.
	maxChannelsBytes = 1 << 20
)

// making are the topics that this node makes just now, with the channels that lookups know. Publishing to them waits: a message that
// is stored before the second channel exists would not be in it.
type making struct {
	count atomic.Int32 // so that finding a topic costs no lock
	mu    sync.Mutex
	names map[string]chan struct{} // closed when it is done
}

// begin says whether the caller makes the topic, and must call end; otherwise done closes when another one has.
func (m *making) begin(name string) (mine bool, done chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if done := m.names[name]; done != nil {
		return false, done
	}
	if m.names == nil {
		m.names = map[string]chan struct{}{}
	}
	done = make(chan struct{})
	m.names[name] = done
	m.count.Add(1)
	return true, done
}

func (m *making) end(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.names[name])
	delete(m.names, name)
	m.count.Add(-1)
}

// wait returns when nobody makes the topic.
func (m *making) wait(ctx context.Context, name string) error {
	if m.count.Load() == 0 {
		return nil
	}
	m.mu.Lock()
	done := m.names[name]
	m.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// topic finds the topic, or makes it unless topics are not made by themselves.
func (s *Server) topic(ctx context.Context, name string) (*engine.Topic, error) {
	return s.findOrMake(ctx, name, func() (*engine.Topic, error) { return s.engine.Topic(ctx, name) })
}

// createTopic finds the topic, or makes it with so many partitions; 0: the default.
func (s *Server) createTopic(ctx context.Context, name string, partitions int) (*engine.Topic, error) {
	return s.findOrMake(ctx, name, func() (*engine.Topic, error) { return s.engine.CreateTopic(ctx, name, partitions) })
}

// findOrMake gives a new topic the channels that nsqlookupds and the nsqds that registered here know of it, before anything is
// published to it through this node: as nsqd does it. Where nobody can be asked, it is create.
func (s *Server) findOrMake(ctx context.Context, name string, create func() (*engine.Topic, error)) (*engine.Topic, error) {
	if err := s.making.wait(ctx, name); err != nil {
		return nil, err
	}
	if t, ok := s.engine.LookupTopic(name); ok {
		return t, nil
	}
	if !s.knowsLookups() || !engine.ValidTopicName(name) {
		return create()
	}
	mine, done := s.making.begin(name)
	if !mine {
		select {
		case <-done:
			return create() // it is there, or the other one failed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer s.making.end(name)
	channels := s.channelsElsewhere(ctx, name)
	t, err := create()
	if err != nil {
		return nil, err
	}
	for _, channel := range channels {
		if _, err := t.CreateChannel(ctx, channel); err != nil {
			s.opts.Logger.Warn("a new topic begins without a channel that lookups know: messages before its first consumer will not be in it", "topic", name, "channel", channel, "error", err)
			break // the next ones would fail, too
		}
	}
	s.registrar.changed()
	return t, nil
}

// knowsLookups says whether anybody could know channels of a topic that is not here.
func (s *Server) knowsLookups() bool {
	return s.lookupd != nil || len(s.registrar.peerList()) > 0
}

// channelsElsewhere are the channels of a topic that others have, but for ephemeral ones, which come with their consumers.
func (s *Server) channelsElsewhere(ctx context.Context, topic string) []string {
	names := map[string]bool{}
	if s.lookupd != nil {
		registered, _ := s.lookupd.registry.channelNames(topic)
		for _, name := range registered {
			names[name] = true
		}
	}
	for _, name := range s.registrar.channels(ctx, topic) {
		names[name] = true
	}
	maps.DeleteFunc(names, func(name string, _ bool) bool { return isEphemeral(name) || !engine.ValidChannelName(name) })
	return slices.Sorted(maps.Keys(names))
}

// channels asks all nsqlookupds for a topic's channels, at once.
func (r *registrar) channels(ctx context.Context, topic string) []string {
	peers := r.peerList()
	if len(peers) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupdAskTime)
	defer cancel()
	type answer struct {
		names []string
		err   error
	}
	answers := make(chan answer, len(peers))
	for _, p := range peers {
		go func() {
			names, err := p.channels(ctx, topic)
			answers <- answer{names, err}
		}()
	}
	var names []string
	var failed error
	for range peers {
		a := <-answers
		names = append(names, a.names...)
		failed = errors.Join(failed, a.err)
	}
	if failed != nil {
		r.log.Warn("a new topic may begin without channels that an nsqlookupd knows: it could not be asked", "topic", topic, "error", failed)
	}
	return names
}

// lookupdHTTP follows no redirects and uses no proxy: an nsqlookupd is near, and asked rarely.
var lookupdHTTP = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: web.MaxHeaderBytes},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// channels asks one nsqlookupd, when the first attempt to reach it is over.
func (p *lookupdPeer) channels(ctx context.Context, topic string) ([]string, error) {
	select {
	case <-p.tried:
	case <-ctx.Done():
		return nil, fmt.Errorf("nsqlookupd %s: %w", p.address, ctx.Err())
	}
	address := p.info.Load().httpAddress()
	if address == "" {
		return nil, fmt.Errorf("nsqlookupd %s: there is no connection to it", p.address)
	}
	names, err := askChannels(ctx, address, topic)
	if err != nil {
		return nil, fmt.Errorf("nsqlookupd %s, lookups at %s: %w", p.address, address, err)
	}
	return names, nil
}

func askChannels(ctx context.Context, address, topic string) ([]string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/channels?topic="+url.QueryEscape(topic), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/vnd.nsq; version=1.0")
	reply, err := lookupdHTTP.Do(r)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxChannelsBytes+1))
	switch {
	case err != nil:
		return nil, err
	case reply.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the answer has status %d", reply.StatusCode)
	case len(body) > maxChannelsBytes:
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxChannelsBytes)
	}
	var list channelList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("the answer is not a list of channels: %w", err)
	}
	return list.Channels, nil
}
