package lookup

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/node/names"
)

const (
	// maxRegistryEntries bounds the registrations of all nsqds together: the topics, the channels, and the nsqds of
	// each of them. An entry takes about 200 bytes.
	maxRegistryEntries = 1 << 18

	// maxProducerEntries bounds the registrations of one nsqd, so that no single nsqd can fill the registry.
	maxProducerEntries = 1 << 16

	// registrySweepPause is the least time between two searches for entries without an nsqd, because each search visits
	// every entry.
	registrySweepPause = time.Second
)

var errRegistryFull = errors.New("nsq: too many topics and channels are registered")

// registry holds the topics and channels that stock nsqds registered at this node over TCP. Like nsqlookupd, it is in
// memory only, and a registration lasts as long as the nsqd's connection. A topic or channel without an nsqd stays
// known until it is deleted or its room is needed: its consumers should go on waiting for it, and an nsqd that creates
// the topic should learn its channels.
//
// The goroutines of TCP connections add and remove registrations; those of HTTP requests read them, delete topics and
// channels, and set tombstones. Methods are safe for concurrent use: they take mu, which guards everything except
// registrant.lastUpdate, and call nothing else while they hold it.
type registry struct {
	inactive atomic.Int64 // ns; answers leave out an nsqd that is silent for longer

	mu          sync.RWMutex
	registrants map[*registrant]struct{}
	topics      map[string]*registeredTopic
	// entries counts topics, channels, and the registrants of each: ≤ maxRegistryEntries. It is the sum of len(topics),
	// the number of all channels, and the entries of all registrants.
	entries int
	swept   time.Time // when makeRoom last visited every entry
}

// registrant is an nsqd that identified itself on the TCP port, for the duration of one connection.
type registrant struct {
	Producer                // immutable after join
	lastUpdate atomic.Int64 // time of the last IDENTIFY or PING, ns since 1970

	entries int                 // number of its topics and channels: ≤ maxProducerEntries; guarded by registry.mu
	topics  map[string]struct{} // names of the topics that it registered; guarded by registry.mu
}

// registeredTopic is guarded by registry.mu. A registrant of one of its channels is also a registrant of the topic.
type registeredTopic struct {
	registrants map[*registrant]time.Time // until when a tombstone hides each of them
	channels    map[string]map[*registrant]struct{}
}

func newRegistry(inactive time.Duration) *registry {
	r := &registry{registrants: map[*registrant]struct{}{}, topics: map[string]*registeredTopic{}}
	r.inactive.Store(int64(inactive))
	return r
}

// active reports whether the nsqd has sent an IDENTIFY or PING recently enough.
func (r *registry) active(p *registrant, now time.Time) bool {
	return now.UnixNano()-p.lastUpdate.Load() <= r.inactive.Load()
}

// join adds an nsqd that has not registered any topic yet.
func (r *registry) join(p *registrant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.topics = map[string]struct{}{}
	r.registrants[p] = struct{}{}
}

// leave removes an nsqd. Ephemeral topics and channels that no other nsqd registered are dropped.
func (r *registry) leave(p *registrant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic := range p.topics {
		r.removeTopic(p, topic)
	}
	delete(r.registrants, p)
}

// add registers a topic, or a channel together with its topic. Repeating a registration is no error.
func (r *registry) add(p *registrant, topic, channel string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh, own := r.needs(p, topic, channel)
	if r.entries+fresh+own > maxRegistryEntries {
		r.makeRoom()
		fresh, own = r.needs(p, topic, channel) // makeRoom may have dropped the topic
	}
	if p.entries+own > maxProducerEntries || r.entries+fresh+own > maxRegistryEntries {
		return errRegistryFull
	}
	r.entries += fresh + own
	p.entries += own
	t := r.topics[topic]
	if t == nil {
		t = &registeredTopic{
			registrants: map[*registrant]time.Time{}, channels: map[string]map[*registrant]struct{}{},
		}
		r.topics[topic] = t
	}
	if _, has := t.registrants[p]; !has {
		t.registrants[p] = time.Time{}
		p.topics[topic] = struct{}{}
	}
	if channel != "" {
		if t.channels[channel] == nil {
			t.channels[channel] = map[*registrant]struct{}{}
		}
		t.channels[channel][p] = struct{}{}
	}
	return nil
}

// needs counts the entries that add would make: fresh are topics and channels that the registry does not have yet, own
// are the registrations that the nsqd does not have yet. The caller holds r.mu.
func (r *registry) needs(p *registrant, topic, channel string) (fresh, own int) {
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
	var holders map[*registrant]struct{}
	if t != nil {
		holders = t.channels[channel]
	}
	if holders == nil {
		fresh++
	}
	if _, has := holders[p]; !has {
		own++
	}
	return fresh, own
}

// makeRoom drops topics and channels without an nsqd, unless it did so less than registrySweepPause ago. The caller
// holds r.mu.
func (r *registry) makeRoom() {
	now := time.Now()
	if now.Sub(r.swept) < registrySweepPause {
		return
	}
	r.swept = now
	for name, t := range r.topics {
		for channel, holders := range t.channels {
			if len(holders) == 0 {
				r.dropChannel(t, channel)
			}
		}
		if len(t.registrants) == 0 {
			r.dropTopic(name)
		}
	}
}

// remove unregisters the nsqd from a channel, or from a topic with all of its channels.
func (r *registry) remove(p *registrant, topic, channel string) {
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

// removeTopic is remove for a topic. The caller holds r.mu.
func (r *registry) removeTopic(p *registrant, topic string) {
	t := r.topics[topic]
	if t == nil {
		return
	}
	for channel := range t.channels {
		r.removeChannel(p, t, channel)
	}
	if _, has := t.registrants[p]; has {
		delete(t.registrants, p)
		delete(p.topics, topic)
		r.entries--
		p.entries--
	}
	if len(t.registrants) == 0 && names.Ephemeral(topic) {
		r.dropTopic(topic)
	}
}

// removeChannel is remove for a channel. The caller holds r.mu.
func (r *registry) removeChannel(p *registrant, t *registeredTopic, channel string) {
	holders, known := t.channels[channel]
	if _, has := holders[p]; has {
		delete(holders, p)
		r.entries--
		p.entries--
	}
	if known && len(holders) == 0 && names.Ephemeral(channel) {
		r.dropChannel(t, channel)
	}
}

// dropChannel deletes a channel along with its registrations. The caller holds r.mu.
func (r *registry) dropChannel(t *registeredTopic, channel string) {
	holders := t.channels[channel]
	for p := range holders {
		p.entries--
	}
	r.entries -= 1 + len(holders)
	delete(t.channels, channel)
}

// dropTopic deletes a topic along with its registrations. The caller holds r.mu.
func (r *registry) dropTopic(topic string) {
	t := r.topics[topic]
	for channel := range t.channels {
		r.dropChannel(t, channel)
	}
	for p := range t.registrants {
		p.entries--
		delete(p.topics, topic)
	}
	r.entries -= 1 + len(t.registrants)
	delete(r.topics, topic)
}

// deleteTopic deletes a topic, as nsqlookupd does at /topic/delete. Its nsqds stay connected, and register the topic
// again only when they create it again or connect again.
func (r *registry) deleteTopic(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.topics[topic] != nil {
		r.dropTopic(topic)
	}
}

// deleteChannel deletes a channel in the same way, and reports whether it was registered.
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

// tombstone hides the nsqds that node names from lookups of the topic until the given time.
func (r *registry) tombstone(topic, node string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.topics[topic]; t != nil {
		for p := range t.registrants {
			if p.named(node) {
				t.registrants[p] = until
			}
		}
	}
}

// topicNames returns the names of the topics in no particular order.
func (r *registry) topicNames() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Keys(r.topics))
}

// channelNames returns the channels of a topic in no particular order; known is false if the topic is not registered.
func (r *registry) channelNames(topic string) (names []string, known bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.topics[topic]
	if t == nil {
		return nil, false
	}
	return slices.Collect(maps.Keys(t.channels)), true
}

// lookup returns the nsqds of a topic to which consumers should connect.
func (r *registry) lookup(topic string, now time.Time) []Producer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.topics[topic]
	if t == nil {
		return nil
	}
	var out []Producer
	for p, hidden := range t.registrants {
		if r.active(p, now) && !now.Before(hidden) {
			out = append(out, p.Producer)
		}
	}
	slices.SortFunc(out, compareProducers)
	return out
}

func compareProducers(a, b Producer) int {
	return cmp.Or(cmp.Compare(a.endpoint(), b.endpoint()), cmp.Compare(a.RemoteAddress, b.RemoteAddress))
}

// nodes returns the active nsqds with their topics, including those with a tombstone.
func (r *registry) nodes(now time.Time) []*nodeLine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []*nodeLine
	for p := range r.registrants {
		if !r.active(p, now) {
			continue
		}
		line := &nodeLine{Producer: p.Producer, Tombstones: []bool{}, Topics: []string{}}
		for _, topic := range slices.Sorted(maps.Keys(p.topics)) {
			line.Topics = append(line.Topics, topic)
			line.Tombstones = append(line.Tombstones, now.Before(r.topics[topic].registrants[p]))
		}
		out = append(out, line)
	}
	slices.SortFunc(out, func(a, b *nodeLine) int { return compareProducers(a.Producer, b.Producer) })
	return out
}

// debug calls f for every nsqd and every registration. It holds r.mu, so f must not call the registry.
func (r *registry) debug(f func(key string, p *registrant, hidden time.Time)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for p := range r.registrants {
		f("client::", p, time.Time{})
		for topic := range p.topics {
			t := r.topics[topic]
			f("topic:"+topic+":", p, t.registrants[p])
			for channel, holders := range t.channels {
				if _, has := holders[p]; has {
					f("channel:"+topic+":"+channel, p, time.Time{})
				}
			}
		}
	}
}
