package nsq

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxRegistryEntries bounds what all producers registered: topics, channels, and who has each of them. About 200 bytes each.
	maxRegistryEntries = 1 << 18

	// maxProducerEntries is one producer's part of it, so that one cannot take all.
	maxProducerEntries = 1 << 16

	// registrySweepPause is the least time between two searches for entries that nobody has any more: they walk over everything.
	registrySweepPause = time.Second
)

var errRegistryFull = errors.New("nsq: too many topics and channels are registered")

// registry is what nsqds registered at this node over TCP. It is kept as nsqlookupd keeps it: in memory, for as long as the producer's
// connection lasts. A topic or channel whose producers are gone stays known, without producers, until it is deleted or the room is
// needed: its consumers should wait for it, and an nsqd that makes the topic should find the channels. Methods are safe for concurrent use.
type registry struct {
	inactive time.Duration // a producer that is silent for longer is not mentioned

	mu        sync.RWMutex
	producers map[*producer]struct{}
	topics    map[string]*registeredTopic
	entries   int // topics, channels, and the producers of each: ≤ maxRegistryEntries
	swept     time.Time
}

// producer is an nsqd that identified itself, for the time of one connection.
type producer struct {
	peer
	lastUpdate atomic.Int64 // IDENTIFY or PING, ns since 1970

	entries int                 // under registry.mu: ≤ maxProducerEntries
	topics  map[string]struct{} // under registry.mu
}

// registeredTopic: whoever has one of its channels has the topic, too.
type registeredTopic struct {
	producers map[*producer]time.Time // hidden by a tombstone until then
	channels  map[string]map[*producer]struct{}
}

func newRegistry(inactive time.Duration) *registry {
	return &registry{inactive: inactive, producers: map[*producer]struct{}{}, topics: map[string]*registeredTopic{}}
}

// active says whether the producer was heard of lately.
func (r *registry) active(p *producer, now time.Time) bool {
	return now.UnixNano()-p.lastUpdate.Load() <= int64(r.inactive)
}

// join adds a producer that has no topics yet.
func (r *registry) join(p *producer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.topics = map[string]struct{}{}
	r.producers[p] = struct{}{}
}

// leave forgets the producer. Ephemeral topics and channels that only it had go with it.
func (r *registry) leave(p *producer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic := range p.topics {
		r.removeTopic(p, topic)
	}
	delete(r.producers, p)
}

// add registers a topic, or a channel with its topic. Again is no error.
func (r *registry) add(p *producer, topic, channel string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh, own := r.needs(p, topic, channel)
	if r.entries+fresh+own > maxRegistryEntries {
		r.makeRoom()
		fresh, own = r.needs(p, topic, channel) // the topic may be gone
	}
	if p.entries+own > maxProducerEntries || r.entries+fresh+own > maxRegistryEntries {
		return errRegistryFull
	}
	r.entries += fresh + own
	p.entries += own
	t := r.topics[topic]
	if t == nil {
		t = &registeredTopic{producers: map[*producer]time.Time{}, channels: map[string]map[*producer]struct{}{}}
		r.topics[topic] = t
	}
	if _, has := t.producers[p]; !has {
		t.producers[p] = time.Time{}
		p.topics[topic] = struct{}{}
	}
	if channel != "" {
		if t.channels[channel] == nil {
			t.channels[channel] = map[*producer]struct{}{}
		}
		t.channels[channel][p] = struct{}{}
	}
	return nil
}

// needs counts what add would add: topics and channels that nobody has yet, and what the producer itself gets.
func (r *registry) needs(p *producer, topic, channel string) (fresh, own int) {
	t := r.topics[topic]
	if t == nil {
		fresh++
	}
	if _, has := p.topics[topic]; !has {
		own++
	}
	if channel == "" {
		return fresh, own
	}
	var having map[*producer]struct{}
	if t != nil {
		having = t.channels[channel]
	}
	if having == nil {
		fresh++
	}
	if _, has := having[p]; !has {
		own++
	}
	return fresh, own
}

// makeRoom drops what has no producers, if that was not just tried.
func (r *registry) makeRoom() {
	now := time.Now()
	if now.Sub(r.swept) < registrySweepPause {
		return
	}
	r.swept = now
	for name, t := range r.topics {
		for channel, having := range t.channels {
			if len(having) == 0 {
				r.dropChannel(t, channel)
			}
		}
		if len(t.producers) == 0 {
			r.dropTopic(name)
		}
	}
}

// remove takes a channel from the producer, or a topic with its channels.
func (r *registry) remove(p *producer, topic, channel string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if channel == "" {
		r.removeTopic(p, topic)
		return
	}
	if t := r.topics[topic]; t != nil {
		r.removeChannel(p, t, channel)
	}
}

func (r *registry) removeTopic(p *producer, topic string) {
	t := r.topics[topic]
	if t == nil {
		return
	}
	for channel := range t.channels {
		r.removeChannel(p, t, channel)
	}
	if _, has := t.producers[p]; has {
		delete(t.producers, p)
		delete(p.topics, topic)
		r.entries--
		p.entries--
	}
	if len(t.producers) == 0 && isEphemeral(topic) {
		r.dropTopic(topic)
	}
}

func (r *registry) removeChannel(p *producer, t *registeredTopic, channel string) {
	having, known := t.channels[channel]
	if _, has := having[p]; has {
		delete(having, p)
		r.entries--
		p.entries--
	}
	if known && len(having) == 0 && isEphemeral(channel) {
		r.dropChannel(t, channel)
	}
}

func isEphemeral(name string) bool { return strings.HasSuffix(name, "#ephemeral") }

// dropChannel forgets a channel, whoever has it.
func (r *registry) dropChannel(t *registeredTopic, channel string) {
	having := t.channels[channel]
	for p := range having {
		p.entries--
	}
	r.entries -= 1 + len(having)
	delete(t.channels, channel)
}

// dropTopic forgets a topic, whoever has it.
func (r *registry) dropTopic(topic string) {
	t := r.topics[topic]
	for channel := range t.channels {
		r.dropChannel(t, channel)
	}
	for p := range t.producers {
		p.entries--
		delete(p.topics, topic)
	}
	r.entries -= 1 + len(t.producers)
	delete(r.topics, topic)
}

// deleteTopic and deleteChannel are what nsqlookupd does at /topic/delete and /channel/delete: its producers register again when they
// make it again, or connect again.
func (r *registry) deleteTopic(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.topics[topic] != nil {
		r.dropTopic(topic)
	}
}

// deleteChannel says whether the channel was registered.
func (r *registry) deleteChannel(topic, channel string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.topics[topic]
	if t == nil || t.channels[channel] == nil {
		return false
	}
	r.dropChannel(t, channel)
	return true
}

// tombstone hides the producers of a topic that are named from its lookups until then.
func (r *registry) tombstone(topic, node string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.topics[topic]; t != nil {
		for p := range t.producers {
			if p.named(node) {
				t.producers[p] = until
			}
		}
	}
}

// topicNames are in no order.
func (r *registry) topicNames() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Keys(r.topics))
}

// channelNames are in no order; known is false if the topic is not registered.
func (r *registry) channelNames(topic string) (names []string, known bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.topics[topic]
	if t == nil {
		return nil, false
	}
	return slices.Collect(maps.Keys(t.channels)), true
}

// lookup are the producers of a topic that consumers should connect to.
func (r *registry) lookup(topic string, now time.Time) []peer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.topics[topic]
	if t == nil {
		return nil
	}
	var out []peer
	for p, hidden := range t.producers {
		if r.active(p, now) && !now.Before(hidden) {
			out = append(out, p.peer)
		}
	}
	slices.SortFunc(out, comparePeers)
	return out
}

func comparePeers(a, b peer) int {
	return cmp.Or(cmp.Compare(a.endpoint(), b.endpoint()), cmp.Compare(a.RemoteAddress, b.RemoteAddress))
}

// endpoint is where clients connect to.
func (p *peer) endpoint() string {
	return net.JoinHostPort(p.BroadcastAddress, strconv.Itoa(p.TCPPort))
}

// nodes are the active producers with their topics, tombstoned or not.
func (r *registry) nodes(now time.Time) []*nodeLine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []*nodeLine
	for p := range r.producers {
		if !r.active(p, now) {
			continue
		}
		line := &nodeLine{peer: p.peer, Tombstones: []bool{}, Topics: []string{}}
		for _, topic := range slices.Sorted(maps.Keys(p.topics)) {
			line.Topics = append(line.Topics, topic)
			line.Tombstones = append(line.Tombstones, now.Before(r.topics[topic].producers[p]))
		}
		out = append(out, line)
	}
	slices.SortFunc(out, func(a, b *nodeLine) int { return comparePeers(a.peer, b.peer) })
	return out
}

// debug calls f for every producer and for all that it registered.
func (r *registry) debug(f func(key string, p *producer, hidden time.Time)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for p := range r.producers {
		f("client::", p, time.Time{})
		for topic := range p.topics {
			t := r.topics[topic]
			f("topic:"+topic+":", p, t.producers[p])
			for channel, having := range t.channels {
				if _, has := having[p]; has {
					f("channel:"+topic+":"+channel, p, time.Time{})
				}
			}
		}
	}
}
