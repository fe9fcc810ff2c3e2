package lookup

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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine"
	"penstock/nsq/internal/web"
)

const (
	// askChannelsTime bounds how long a new topic waits for nsqlookupds to name its channels. Its first publish waits
	// with it.
	askChannelsTime = 2 * time.Second

	// maxChannelsBytes bounds one nsqlookupd's answer.
	maxChannelsBytes = 1 << 20
)

// topicsInCreation are the topics that this node creates just now, with the channels that lookup services know. Every
// caller that names such a topic waits until its channels exist: a message that is stored before the second channel
// exists would not be in it.
//
// A crash in between leaves a topic with only some of these channels. The others come with their consumers, and miss
// what was published before.
type topicsInCreation struct {
	count atomic.Int32 // = len(names); it lets wait return without the lock while nothing is created
	mu    sync.Mutex
	names map[string]chan struct{} // closed by end
}

// begin says whether the caller creates the topic, and must call end. Otherwise another goroutine does, and closes
// done.
func (t *topicsInCreation) begin(name string) (mine bool, done chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if done := t.names[name]; done != nil {
		return false, done
	}
	if t.names == nil {
		t.names = map[string]chan struct{}{}
	}
	done = make(chan struct{})
	t.names[name] = done
	t.count.Add(1)
	return true, done
}

func (t *topicsInCreation) end(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.names[name])
	delete(t.names, name)
	t.count.Add(-1)
}

// wait returns when nobody creates the topic.
func (t *topicsInCreation) wait(ctx context.Context, name string) error {
	if t.count.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	done := t.names[name]
	t.mu.Unlock()
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

// Topic finds the topic that a client names, or creates it, unless the engine is told not to create topics by itself.
// Publishing and subscribing begin with it.
func (s *Service) Topic(ctx context.Context, name string) (*engine.Topic, error) {
	return s.findOrCreate(ctx, name, func() (*engine.Topic, error) { return s.engine.Topic(ctx, name) })
}

// CreateTopic finds the topic, or creates it with that many partitions; 0: the default.
func (s *Service) CreateTopic(ctx context.Context, name string, partitions int) (*engine.Topic, error) {
	return s.findOrCreate(ctx, name, func() (*engine.Topic, error) { return s.engine.CreateTopic(ctx, name, partitions) })
}

// findOrCreate gives a new topic the channels that nsqlookupds, and the nsqds that registered here, know of it, before
// anything is published to it through this node: as nsqd does it. Where nobody can be asked, it only calls create.
//
// A channel that cannot be created, and an nsqlookupd that does not answer, are logged and fail nothing: a client would
// rather publish without that channel than not at all.
func (s *Service) findOrCreate(
	ctx context.Context, name string, create func() (*engine.Topic, error),
) (*engine.Topic, error) {
	if err := s.inCreation.wait(ctx, name); err != nil {
		return nil, err
	}
	if t, ok := s.engine.LookupTopic(name); ok {
		return t, nil
	}
	if !s.canAskForChannels() || !engine.ValidTopicName(name) {
		return create()
	}
	mine, done := s.inCreation.begin(name)
	if !mine {
		select {
		case <-done:
			return create() // finds it, unless the other goroutine failed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer s.inCreation.end(name)
	channels := s.channelsElsewhere(ctx, name)
	t, err := create()
	if err != nil {
		return nil, err
	}
	for _, channel := range channels {
		if _, err := t.CreateChannel(ctx, channel); err != nil {
			s.log.Warn(
				"a new topic begins without a channel that lookups know: messages before its first consumer will not be in it",
				"topic", name, "channel", channel, "error", err,
			)
			break // the next ones would fail, too
		}
	}
	s.registrar.lookAgain()
	return t, nil
}

// canAskForChannels says whether anybody could know channels of a topic that is not here.
func (s *Service) canAskForChannels() bool {
	return s.tcp != nil || len(s.registrar.current()) > 0
}

// channelsElsewhere are the channels of a topic that others have, but for ephemeral ones, which come with their
// consumers.
func (s *Service) channelsElsewhere(ctx context.Context, topic string) []string {
	names := map[string]bool{}
	if s.tcp != nil {
		registered, _ := s.tcp.registry.channelNames(topic)
		for _, name := range registered {
			names[name] = true
		}
	}
	for _, name := range s.registrar.channels(ctx, topic) {
		names[name] = true
	}
	maps.DeleteFunc(names, func(name string, _ bool) bool {
		return isEphemeral(name) || !engine.ValidChannelName(name)
	})
	return slices.Sorted(maps.Keys(names))
}

// isEphemeral says whether a topic or channel goes with the last that uses it.
func isEphemeral(name string) bool { return strings.HasSuffix(name, "#ephemeral") }

// channels asks all nsqlookupds for a topic's channels, at once.
func (r *registrar) channels(ctx context.Context, topic string) []string {
	all := r.current()
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askChannelsTime)
	defer cancel()
	type answer struct {
		names []string
		err   error
	}
	answers := make(chan answer, len(all))
	for _, n := range all {
		go func() {
			names, err := n.channels(ctx, topic)
			answers <- answer{names, err}
		}()
	}
	var names []string
	var failed error
	for range all {
		a := <-answers
		names = append(names, a.names...)
		failed = errors.Join(failed, a.err)
	}
	if failed != nil {
		r.log.Warn("a new topic may begin without channels that an nsqlookupd knows: it could not be asked",
			"topic", topic, "error", failed)
	}
	return names
}

// channelsClient follows no redirects and uses no proxy: an nsqlookupd is near, and asked rarely.
var channelsClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: web.MaxHeaderBytes},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// channels asks this nsqlookupd over HTTP. It first waits until the first attempt to connect to its TCP port is over:
// the answer to IDENTIFY says where its HTTP API is.
func (n *nsqlookupd) channels(ctx context.Context, topic string) ([]string, error) {
	select {
	case <-n.tried:
	case <-ctx.Done():
		return nil, fmt.Errorf("nsqlookupd %s: %w", n.address, ctx.Err())
	}
	address := n.info.Load().httpAddress()
	if address == "" {
		return nil, fmt.Errorf("nsqlookupd %s: there is no connection to it", n.address)
	}
	names, err := askChannels(ctx, address, topic)
	if err != nil {
		return nil, fmt.Errorf("nsqlookupd %s, lookups at %s: %w", n.address, address, err)
	}
	return names, nil
}

func askChannels(ctx context.Context, address, topic string) ([]string, error) {
	where := "http://" + address + "/channels?topic=" + url.QueryEscape(topic)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/vnd.nsq; version=1.0")
	reply, err := channelsClient.Do(r)
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
