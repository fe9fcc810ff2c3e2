package lookup

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"sync"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/web"
	"penstock/replicate"
)

const (
	// tombstoneTime is how long a tombstone lasts, which is nsqlookupd's default.
	tombstoneTime = 45 * time.Second

	// maxLocalTombstones bounds the number of tombstones on a lone node.
	maxLocalTombstones = 20000
)

// api serves nsqlookupd 1.3.0's HTTP API. Its answers come from the cluster's metadata rather than from registrations:
// the cluster's own nodes do not have to register, and every node answers the same. The registrations of stock nsqds at
// this node are merged into every answer.
//
// The goroutines of HTTP requests call it. An endpoint takes one Snapshot and uses it throughout, so that an answer
// does not contradict itself. A lone node has no Snapshot: it leads everything, and keeps its tombstones in the field
// hidden, in memory. A restart loses these tombstones, and lookups then name the node again.
type api struct {
	dir      Directory
	self     Producer
	guarded  bool // see Options.Guarded
	maker    func(*http.Request) (string, error)
	registry *registry
	deleted  web.Deletions

	mu     sync.Mutex           // guards hidden; no other part is called while it is held
	hidden map[string]time.Time // by topic, on a lone node: until when lookups leave the node out; ≤ maxLocalTombstones
}

func newAPI(dir Directory, self Producer, inactive time.Duration) *api {
	return &api{dir: dir, self: self, registry: newRegistry(inactive), hidden: map[string]time.Time{}}
}

// table returns the routes of nsqlookupd. /tombstone_topic_producer is the name that /topic/tombstone had before
// nsqlookupd 1.0.
func (a *api) table() web.Table {
	all := web.Table{
		"/ping":                     web.Raw("GET", servePing, web.Open),
		"/info":                     web.On("GET", a.serveInfo, web.Known),
		"/debug":                    web.On("GET", a.serveDebug, web.Known),
		"/lookup":                   web.On("GET", a.serveLookup, web.Open),
		"/listlookup":               web.On("GET", a.serveListLookup, web.Open),
		"/topics":                   web.On("GET", a.serveTopics, web.Known),
		"/channels":                 web.On("GET", a.serveChannels, web.Open),
		"/nodes":                    web.On("GET", a.serveNodes, web.Known),
		"/topic/create":             web.On("POST", a.serveTopicCreate, web.AdminTopic),
		"/topic/delete":             web.On("POST", a.serveTopicDelete, web.AdminTopic),
		"/channel/create":           web.On("POST", a.serveChannelCreate, web.Admin),
		"/channel/delete":           web.On("POST", a.serveChannelDelete, web.Admin),
		"/topic/tombstone":          web.On("POST", a.serveTombstone, web.AdminTopic),
		"/tombstone_topic_producer": web.On("POST", a.serveTombstone, web.AdminTopic),
	}
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": web.CommandLine, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol,
	} {
		all[path] = web.Raw("GET,HEAD,POST", h, web.Node).Unaudited()
	}
	return all
}

// servePing always answers OK: lookups work even when the disk fails.
func servePing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "OK")
}

// topics returns the names of all our own topics, sorted.
func (a *api) topics(s *meta.Snapshot) []string {
	if s != nil {
		return orEmpty(slices.Sorted(maps.Keys(s.Names)))
	}
	return orEmpty(a.dir.TopicNames())
}

// merged combines our own names with the registered ones. Without registered names it returns own unchanged; otherwise
// the result is sorted, without duplicates.
func merged(own, registered []string) []string {
	if len(registered) == 0 {
		return orEmpty(own)
	}
	all := slices.Concat(own, registered)
	slices.Sort(all)
	return slices.Compact(all)
}

// strangers returns the registered producers that are not nodes of ours, so that a node of ours that also registers
// here is named only once.
func (a *api) strangers(s *meta.Snapshot, registered []Producer) []Producer {
	if len(registered) == 0 {
		return nil
	}
	own := a.ownEndpoints(s)
	return slices.DeleteFunc(registered, func(p Producer) bool { return own[p.endpoint()] })
}

// ownEndpoints returns the addresses at which our nodes serve clients, whether they are live or not.
func (a *api) ownEndpoints(s *meta.Snapshot) map[string]bool {
	if s == nil {
		return map[string]bool{a.self.endpoint(): true}
	}
	own := map[string]bool{}
	for _, n := range s.Nodes {
		p := producerOf(n, a.self.Version)
		own[p.endpoint()] = true
	}
	return own
}

// orEmpty replaces nil with an empty list, which is [] in JSON: clients do not expect null.
func orEmpty(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

// leaders returns the nodes that lead a partition of the topic, live or not. ok is false if our nodes have no such
// topic.
func (a *api) leaders(ctx context.Context, s *meta.Snapshot, topic string) (all []leader, ok bool) {
	if s == nil {
		if _, err := a.dir.ChannelNames(ctx, topic); isMissing(err) {
			return nil, false
		}
		return []leader{a.alone(topic)}, true
	}
	t := s.Names[topic]
	if t == nil {
		return nil, false
	}
	return leadersOf(s, t, a.self.Version), true
}

// alone returns this lone node as the leader of the topic.
func (a *api) alone(topic string) leader {
	a.mu.Lock()
	defer a.mu.Unlock()
	return leader{Producer: a.self, live: true, hidden: a.hidden[topic]}
}

func (a *api) serveInfo(*http.Request, url.Values) (any, error) {
	return struct {
		Version string `json:"version"`
	}{a.self.Version}, nil
}

func (a *api) serveTopics(*http.Request, url.Values) (any, error) {
	return struct {
		Topics []string `json:"topics"`
	}{merged(a.topics(a.dir.Snapshot()), a.registry.topicNames())}, nil
}

type channelList struct {
	Channels []string `json:"channels"`
}

// serveChannels answers with an empty list for an unknown topic or an invalid name, as nsqlookupd does.
func (a *api) serveChannels(r *http.Request, q url.Values) (any, error) {
	if !q.Has("topic") {
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	}
	names, err := a.dir.ChannelNames(r.Context(), q.Get("topic"))
	if err != nil && !isMissing(err) {
		return nil, err
	}
	registered, _ := a.registry.channelNames(q.Get("topic"))
	return channelList{merged(names, registered)}, nil
}

type lookupReply struct {
	Channels  []string   `json:"channels"`
	Producers []Producer `json:"producers"`

	Partitions map[string]Producer `json:"partitions,omitempty"` // for clients that ask as youzan's do; see extend
	Meta       *topicMeta          `json:"meta,omitempty"`
}

// serveLookup lists the nodes to which clients of the topic have to connect.
func (a *api) serveLookup(r *http.Request, q url.Values) (any, error) {
	if !q.Has("topic") {
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	}
	topic := q.Get("topic")
	extra, err := parseExtraQuery(q)
	if err != nil {
		return nil, err
	}
	s := a.dir.Snapshot()
	leaders, ok := a.leaders(r.Context(), s, topic)
	registered, known := a.registry.channelNames(topic)
	if !ok && !known {
		return nil, web.Fail(404, "TOPIC_NOT_FOUND")
	}
	names, err := a.dir.ChannelNames(r.Context(), topic)
	if err != nil {
		names = nil // no leader answered; consumers need only the producers, which are known
	}
	reply := lookupReply{Channels: merged(names, registered), Producers: []Producer{}}
	now := time.Now()
	for _, n := range leaders {
		if n.live && !extra.hides(&n, now) && n.TCPPort != 0 {
			reply.Producers = append(reply.Producers, n.Producer)
		}
	}
	a.extend(&reply, extra, s, topic, now)
	if !ok || !a.guarded {
		reply.Producers = append(reply.Producers, a.strangers(s, a.registry.lookup(topic, now))...)
	}
	return reply, nil
}

// nodeLine is one node in the answer to /nodes. Both lists must have the same length, or nsqadmin crashes.
type nodeLine struct {
	Producer
	Tombstones []bool   `json:"tombstones"`
	Topics     []string `json:"topics"`
}

// serveNodes lists the live nodes with the topics that they lead, including tombstoned ones, and then the nsqds that
// registered here.
func (a *api) serveNodes(*http.Request, url.Values) (any, error) {
	s := a.dir.Snapshot()
	lines := []*nodeLine{}
	byNode := map[replicate.NodeID]*nodeLine{}
	for _, n := range a.nodes(s) {
		line := &nodeLine{Producer: n.Producer, Tombstones: []bool{}, Topics: []string{}}
		lines, byNode[n.node] = append(lines, line), line
	}
	now := time.Now()
	a.eachLeader(s, func(topic string, n *leader) {
		if line := byNode[n.node]; line != nil && n.live {
			line.Topics = append(line.Topics, topic)
			line.Tombstones = append(line.Tombstones, n.tombstoned(now))
		}
	})
	own := a.ownEndpoints(s)
	for _, line := range a.registry.nodes(now) {
		if !own[line.endpoint()] {
			lines = append(lines, line)
		}
	}
	return struct {
		Producers []*nodeLine `json:"producers"`
	}{lines}, nil
}

// nodes returns our live nodes, sorted by id, even those that lead nothing.
func (a *api) nodes(s *meta.Snapshot) []leader {
	if s == nil {
		return []leader{{Producer: a.self, live: true}}
	}
	var out []leader
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		if n := s.Nodes[id]; n.Live {
			out = append(out, leader{Producer: producerOf(n, a.self.Version), node: id, live: true})
		}
	}
	return out
}

// eachLeader calls f for every leader of every topic of ours, in the order of topic names.
func (a *api) eachLeader(s *meta.Snapshot, f func(topic string, n *leader)) {
	for _, topic := range a.topics(s) {
		if s == nil {
			n := a.alone(topic)
			f(topic, &n)
			continue
		}
		all := leadersOf(s, s.Names[topic], a.self.Version)
		for i := range all {
			f(topic, &all[i])
		}
	}
}

// registration is one entry in the answer to /debug.
type registration struct {
	ID string `json:"id"`
	Producer
	LastUpdate   int64 `json:"last_update"`
	Tombstoned   bool  `json:"tombstoned"`
	TombstonedAt int64 `json:"tombstoned_at"`
}

// serveDebug shows what an nsqlookupd would have registered, under the keys that it would use.
func (a *api) serveDebug(r *http.Request, _ url.Values) (any, error) {
	s, now := a.dir.Snapshot(), time.Now()
	out := map[string][]registration{}
	add := func(key string, n *leader) {
		line := registration{ID: n.RemoteAddress, Producer: n.Producer, LastUpdate: now.UnixNano()}
		if !n.hidden.IsZero() {
			line.Tombstoned, line.TombstonedAt = n.tombstoned(now), n.hidden.Add(-tombstoneTime).UnixNano()
		}
		out[key] = append(out[key], line)
	}
	for _, n := range a.nodes(s) {
		add("client::", &n)
	}
	var failed error
	a.eachLeader(s, func(topic string, n *leader) {
		if !n.live || failed != nil {
			return
		}
		add("topic:"+topic+":", n)
		names, err := a.dir.ChannelNames(r.Context(), topic)
		if !isMissing(err) { // else the topic was deleted in the meantime
			failed = err
		}
		for _, c := range names {
			add("channel:"+topic+":"+c, n)
		}
	})
	a.registry.debug(func(key string, p *registrant, hidden time.Time) {
		n := leader{Producer: p.Producer, hidden: hidden}
		add(key, &n)
		out[key][len(out[key])-1].LastUpdate = p.lastUpdate.Load()
	})
	return out, failed
}

func isMissing(err error) bool {
	return errors.Is(err, errs.ErrNoTopic) || errors.Is(err, errs.ErrNoChannel) || errors.Is(err, meta.ErrNotFound)
}

// serveTopicCreate accepts two parameters that nsqlookupd does not have: partitions and replicas, as in our nsqd's
// /topic/create. youzan's lookup service calls them partition_num and replicator. That service's other parameters
// (extend, orderedmulti, syncdisk) are ignored: every topic here has the features that they ask for.
func (a *api) serveTopicCreate(r *http.Request, q url.Values) (any, error) {
	topic, err := web.TopicName(q, "INVALID_ARG_TOPIC")
	if err != nil {
		return nil, err
	}
	var o node.TopicOptions
	for _, p := range []struct {
		name, invalid string
		value         *int
		most          int
	}{
		{"partition_num", "INVALID_ARG_TOPIC_PARTITION_NUM", &o.Partitions, node.MaxPartitions},
		{"partitions", "INVALID_PARTITIONS", &o.Partitions, node.MaxPartitions},
		{"replicator", "INVALID_ARG_TOPIC_REPLICATOR", &o.Replicas, node.MaxReplicas},
		{"replicas", "INVALID_REPLICAS", &o.Replicas, node.MaxReplicas},
	} {
		if !q.Has(p.name) {
			continue
		}
		if *p.value, err = web.Count(q, p.name, p.most, p.invalid); err != nil {
			return nil, err
		}
	}
	if o.MadeBy, err = a.makerOf(r); err != nil {
		return nil, err
	}
	if err := a.dir.CreateTopic(r.Context(), topic, o); err != nil && !errors.Is(err, meta.ErrExists) {
		return nil, err
	}
	return nil, nil
}

// makerOf returns the token for which a topic counts that the request makes.
func (a *api) makerOf(r *http.Request) (string, error) {
	if a.maker == nil {
		return "", nil
	}
	return a.maker(r)
}

// serveTopicDelete deletes the topic with its messages on every node, and all registrations of it. It is no error if
// the topic does not exist: nsqadmin sends the request to every lookup service in turn, and the first one has already
// deleted the topic.
func (a *api) serveTopicDelete(r *http.Request, q url.Values) (any, error) {
	if !q.Has("topic") {
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	}
	topic := q.Get("topic")
	if err := a.dir.DeleteTopic(r.Context(), topic); err != nil && !isMissing(err) {
		return nil, err
	}
	a.registry.deleteTopic(topic)
	a.mu.Lock()
	delete(a.hidden, topic)
	a.mu.Unlock()
	return nil, nil
}

// channelNames returns the topic and the channel of a query after checking them in nsqlookupd's order.
func channelNames(q url.Values) (topic, channel string, err error) {
	if topic, err = web.TopicName(q, "INVALID_ARG_TOPIC"); err != nil {
		return "", "", err
	}
	channel, err = web.ChannelName(q)
	return topic, channel, err
}

func (a *api) serveChannelCreate(r *http.Request, q url.Values) (any, error) {
	topic, channel, err := channelNames(q)
	if err != nil {
		return nil, err
	}
	madeBy, err := a.makerOf(r)
	if err != nil {
		return nil, err
	}
	return nil, a.dir.CreateChannel(r.Context(), topic, channel, node.TopicOptions{MadeBy: madeBy})
}

func (a *api) serveChannelDelete(r *http.Request, q url.Values) (any, error) {
	topic, channel, err := channelNames(q)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = a.deleted.Answer(topic+"/"+channel, began, a.dir.DeleteChannel(r.Context(), topic, channel))
	if err != nil && !isMissing(err) {
		return nil, err
	}
	if registered := a.registry.deleteChannel(topic, channel); err != nil && !registered {
		return nil, web.Fail(404, "CHANNEL_NOT_FOUND")
	}
	return nil, nil
}

// serveTombstone hides a node from lookups of the topic for tombstoneTime, whether the node leads the topic or
// registered it. It is no error if the node does neither, or if the topic is unknown, since nsqadmin sends the request
// to every lookup service.
func (a *api) serveTombstone(r *http.Request, q url.Values) (any, error) {
	switch {
	case !q.Has("topic"):
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	case !q.Has("node"):
		return nil, web.Fail(400, "MISSING_ARG_NODE")
	}
	topic, until := q.Get("topic"), time.Now().Add(tombstoneTime)
	s := a.dir.Snapshot()
	a.registry.tombstone(topic, q.Get("node"), until)
	leaders, _ := a.leaders(r.Context(), s, topic)
	for i := range leaders {
		n := &leaders[i]
		if !n.named(q.Get("node")) {
			continue
		}
		if err := a.hide(r.Context(), s, meta.TombstoneKey{Topic: topic, Node: n.node}, until); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// hide sets a tombstone: in the cluster's metadata, or in memory on a lone node.
func (a *api) hide(ctx context.Context, s *meta.Snapshot, key meta.TombstoneKey, until time.Time) error {
	if s != nil {
		return a.dir.Tombstone(ctx, key, until)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for topic, end := range a.hidden {
		if !now.Before(end) {
			delete(a.hidden, topic)
		}
	}
	if len(a.hidden) >= maxLocalTombstones {
		return web.Fail(503, "TOO_MANY_TOMBSTONES")
	}
	a.hidden[key.Topic] = until
	return nil
}
