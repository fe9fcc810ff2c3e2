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
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/names"
	"penstock/internal/server/web"
)

const (
	// askChannelsTime bounds how long the creation of a topic waits for nsqlookupds to name its channels. A publish
	// that creates the topic waits for as long.
	askChannelsTime = 2 * time.Second

	// maxChannelsBytes bounds the size of one nsqlookupd's answer.
	maxChannelsBytes = 1 << 20
)

// topicsInCreation is the set of topics that this node is creating at the moment, together with the channels that
// lookup services know. Every caller that names such a topic waits until the channels exist. Otherwise a message could
// be stored after the first channel exists and before the second, and the second channel would miss it.
//
// A crash during a creation leaves a topic with only some of these channels. The others are created when their
// consumers subscribe, and miss the messages published before.
type topicsInCreation struct {
	count atomic.Int32 // = len(names); lets wait return without the lock while no topic is being created
	mu    sync.Mutex
	names map[string]chan struct{} // by topic; end closes the channel
}

// begin reports whether the caller is the one to create the topic; it must then call end. Otherwise another goroutine
// is creating it, and will close done.
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

// wait blocks while another goroutine is creating the topic.
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

// Topic returns the topic that a client names, and creates it if necessary, unless the engine is configured not to
// create topics implicitly. created tells that it did not exist. Publishing and subscribing call it. A new topic counts
// for the token that maker returns: see node.TopicOptions.
func (s *Service) Topic(
	ctx context.Context, name string, maker func() (string, error),
) (t *node.Topic, created bool, err error) {
	return s.findOrCreate(ctx, name, func() (*node.Topic, error) {
		token, err := maker()
		if err != nil {
			return nil, err
		}
		return s.engine.TopicAs(ctx, token, name)
	})
}

// CreateTopic returns the topic, and creates it if necessary.
func (s *Service) CreateTopic(ctx context.Context, name string, o node.TopicOptions) (*node.Topic, error) {
	t, _, err := s.findOrCreate(ctx, name, func() (*node.Topic, error) { return s.engine.CreateTopicWith(ctx, name, o) })
	return t, err
}

// findOrCreate returns a topic or creates it. As in nsqd, it gives a new topic the channels that nsqlookupds, and the
// nsqds that registered here, know, before anything is published to the topic through this node. If there is nobody to
// ask, it only calls create.
//
// A channel that cannot be created, or an nsqlookupd that does not answer, is logged but is not an error: for the
// client, publishing without that channel is better than not publishing at all.
func (s *Service) findOrCreate(
	ctx context.Context, name string, create func() (*node.Topic, error),
) (t *node.Topic, created bool, err error) {
	if err := s.inCreation.wait(ctx, name); err != nil {
		return nil, false, err
	}
	if t, ok := s.engine.Catalog().LookupTopic(name); ok {
		return t, false, nil
	}
	if !s.canAskForChannels() || !names.ValidTopic(name) {
		t, err := create()
		return t, err == nil, err
	}
	mine, done := s.inCreation.begin(name)
	if !mine {
		select {
		case <-done:
			t, err := create() // finds the topic, unless the other goroutine failed
			return t, false, err
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	defer s.inCreation.end(name)
	channels := s.channelsElsewhere(ctx, name)
	if t, err = create(); err != nil {
		return nil, false, err
	}
	for _, channel := range channels {
		if _, err := t.CreateChannel(ctx, channel); err != nil {
			s.log.Warn(
				"a new topic begins without a channel that lookups know: messages before its first consumer will not be in it",
				"topic", name, "channel", channel, "error", err,
			)
			break // the next channels would fail, too
		}
	}
	s.registrar.lookAgain()
	return t, true, nil
}

// canAskForChannels reports whether there is anybody who could know channels of a topic that does not exist here.
func (s *Service) canAskForChannels() bool {
	return s.tcp != nil || len(s.registrar.current()) > 0
}

// channelsElsewhere returns the channels of a topic that others know. It leaves out ephemeral channels, which are
// created when their consumers subscribe.
func (s *Service) channelsElsewhere(ctx context.Context, topic string) []string {
	all := map[string]bool{}
	if s.tcp != nil {
		registered, _ := s.tcp.registry.channelNames(topic)
		for _, name := range registered {
			all[name] = true
		}
	}
	for _, name := range s.registrar.channels(ctx, topic) {
		all[name] = true
	}
	maps.DeleteFunc(all, func(name string, _ bool) bool {
		return names.Ephemeral(name) || !names.ValidChannel(name)
	})
	return slices.Sorted(maps.Keys(all))
}

// channels asks all nsqlookupds at the same time for a topic's channels.
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
		r.sparing.Warn("a new topic may begin without channels that an nsqlookupd knows: it could not be asked",
			"topic", topic, "error", failed)
	}
	return names
}

// channelsClient follows no redirects, uses no proxy and keeps no connections: an nsqlookupd is nearby, and asked
// rarely.
var channelsClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: web.MaxHeaderBytes},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// channels asks this nsqlookupd over HTTP. It first waits until the first attempt to connect to the nsqlookupd's TCP
// port has ended, because the answer to IDENTIFY contains the address of its HTTP API.
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
