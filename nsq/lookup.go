package nsq

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"penstock/engine"
	"penstock/engine/meta"
	"penstock/nsq/internal/listen"
	"penstock/nsq/internal/web"
	"penstock/replicate"
)

const (
	// tombstoneTime is how long a tombstone lasts: nsqlookupd's default.
	tombstoneTime = 45 * time.Second

	// maxLocalTombstones bounds the tombstones of a node that is alone.
	maxLocalTombstones = 20000
)

// lookup answers what nsqlookupd 1.3.0 answers, from what the nodes agreed on instead of from registrations: nothing has to register, and
// every node answers the same. It keeps no state but a lone node's tombstones, which need not survive it, and what stock nsqds
// registered at this node, which is merged into every answer.
type lookup struct {
	dir      Directory
	self     peer
	registry *registry
	deleted  web.Deletions

	mu     sync.Mutex
	hidden map[string]time.Time // by topic, while there is no Snapshot
}

func newLookup(dir Directory, self peer, inactive time.Duration) *lookup {
	return &lookup{dir: dir, self: self, registry: newRegistry(inactive), hidden: map[string]time.Time{}}
}

// handler has the routes of nsqlookupd. Its /topic/tombstone was /tombstone_topic_producer before 1.0.
func (l *lookup) handler(permit web.Permit) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { web.WriteError(w, web.Fail(404, "NOT_FOUND")) })
	for path, rt := range map[string]web.Route{
		"/info":                     web.On("GET", l.serveInfo, web.Open),
		"/debug":                    web.On("GET", l.serveDebug, web.Open),
		"/lookup":                   web.On("GET", l.serveLookup, web.Open),
		"/listlookup":               web.On("GET", l.serveListLookup, web.Open),
		"/topics":                   web.On("GET", l.serveTopics, web.Open),
		"/channels":                 web.On("GET", l.serveChannels, web.Open),
		"/nodes":                    web.On("GET", l.serveNodes, web.Open),
		"/topic/create":             web.On("POST", l.serveTopicCreate, web.Admin),
		"/topic/delete":             web.On("POST", l.serveTopicDelete, web.Admin),
		"/channel/create":           web.On("POST", l.serveChannelCreate, web.Admin),
		"/channel/delete":           web.On("POST", l.serveChannelDelete, web.Admin),
		"/topic/tombstone":          web.On("POST", l.serveTombstone, web.Admin),
		"/tombstone_topic_producer": web.On("POST", l.serveTombstone, web.Admin),
	} {
		mux.HandleFunc(path, rt.Handler(permit))
	}
	mux.HandleFunc("/ping", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			web.WriteError(w, web.Fail(405, "METHOD_NOT_ALLOWED"))
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "OK") // lookups go on when the disk does not
	})
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile, "/debug/pprof/symbol": pprof.Symbol,
	} {
		mux.Handle(path, web.Guard(permit, h))
	}
	return mux
}

// listenLookup opens the listener of the lookup service, unless it is off. The other listeners are open: their
// ports are part of the answers.
func (s *Server) listenLookup() error {
	if s.opts.LookupAddress == Off {
		return nil
	}
	ln, err := net.Listen("tcp", s.opts.LookupAddress)
	if err != nil {
		return listen.Error("lookups", s.opts.LookupAddress, err)
	}
	s.lookupLn = listen.Bound(ln, s.opts.MaxConnections)
	s.lookup = newLookup(s.opts.Directory, s.self(), s.opts.InactiveProducerTimeout)
	s.lookupHTTP = web.NewServer(s.lookup.handler(s.permit), s.opts.Logger)
	return nil
}

// self is this node as clients are told of it while it is alone, and as it is told to nsqlookupds.
func (s *Server) self() peer {
	host, tcpPort := s.opts.BroadcastAddress, listen.Port(s.TCPAddr())
	return peer{
		RemoteAddress: net.JoinHostPort(host, strconv.Itoa(tcpPort)), Hostname: s.opts.Hostname, BroadcastAddress: host,
		TCPPort: tcpPort, HTTPPort: listen.Port(s.HTTPAddr()), Version: s.opts.Version,
	}
}

// LookupAddr is where lookups are answered; nil when that is off.
func (s *Server) LookupAddr() net.Addr {
	if s.lookupLn == nil {
		return nil
	}
	return s.lookupLn.Addr()
}

// topics are the names of all topics, sorted.
func (l *lookup) topics(s *meta.Snapshot) []string {
	if s != nil {
		return orEmpty(slices.Sorted(maps.Keys(s.Names)))
	}
	return orEmpty(l.dir.TopicNames())
}

// merged are names of ours, in the order they have, with those that nsqds registered: sorted if there are any of these.
func merged(own, registered []string) []string {
	if len(registered) == 0 {
		return orEmpty(own)
	}
	all := slices.Concat(own, registered)
	slices.Sort(all)
	return slices.Compact(all)
}

// strangers are the peers that are none of our nodes: one that registered here, too, is mentioned once.
func (l *lookup) strangers(s *meta.Snapshot, peers []peer) []peer {
	if len(peers) == 0 {
		return nil
	}
	own := l.ownEndpoints(s)
	return slices.DeleteFunc(peers, func(p peer) bool { return own[p.endpoint()] })
}

// ownEndpoints are where our nodes serve clients, live or not.
func (l *lookup) ownEndpoints(s *meta.Snapshot) map[string]bool {
	if s == nil {
		return map[string]bool{l.self.endpoint(): true}
	}
	own := map[string]bool{}
	for _, n := range s.Nodes {
		p := peerOf(n, l.self.Version)
		own[p.endpoint()] = true
	}
	return own
}

// orEmpty makes an empty list that is [] in JSON: clients do not expect null.
func orEmpty(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

// leaders are the nodes that lead a partition of the topic, live or not. ok is false if there is no such topic.
func (l *lookup) leaders(ctx context.Context, s *meta.Snapshot, topic string) (all []leader, ok bool) {
	if s == nil {
		if _, err := l.dir.ChannelNames(ctx, topic); isMissing(err) {
			return nil, false
		}
		return []leader{l.alone(topic)}, true
	}
	t := s.Names[topic]
	if t == nil {
		return nil, false
	}
	return leadersOf(s, t, l.self.Version), true
}

// alone is this node as the leader of everything.
func (l *lookup) alone(topic string) leader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return leader{peer: l.self, live: true, hidden: l.hidden[topic]}
}

func (l *lookup) serveInfo(*http.Request, url.Values) (any, error) {
	return struct {
		Version string `json:"version"`
	}{l.self.Version}, nil
}

func (l *lookup) serveTopics(*http.Request, url.Values) (any, error) {
	return struct {
		Topics []string `json:"topics"`
	}{merged(l.topics(l.dir.Snapshot()), l.registry.topicNames())}, nil
}

type channelList struct {
	Channels []string `json:"channels"`
}

// serveChannels does not mind unknown topics, nor impossible names: nsqlookupd finds nothing under them.
func (l *lookup) serveChannels(r *http.Request, q url.Values) (any, error) {
	if !q.Has("topic") {
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	}
	names, err := l.dir.ChannelNames(r.Context(), q.Get("topic"))
	if err != nil && !isMissing(err) {
		return nil, err
	}
	registered, _ := l.registry.channelNames(q.Get("topic"))
	return channelList{merged(names, registered)}, nil
}

type lookupReply struct {
	Channels  []string `json:"channels"`
	Producers []peer   `json:"producers"`

	Partitions map[string]peer `json:"partitions,omitempty"` // for those who ask as youzan's clients do
	Meta       *topicMeta      `json:"meta,omitempty"`
}

// serveLookup lists who clients of the topic have to connect to.
func (l *lookup) serveLookup(r *http.Request, q url.Values) (any, error) {
	if !q.Has("topic") {
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	}
	topic := q.Get("topic")
	beyond, err := parseLookup(q)
	if err != nil {
		return nil, err
	}
	s := l.dir.Snapshot()
	leaders, ok := l.leaders(r.Context(), s, topic)
	registered, known := l.registry.channelNames(topic)
	if !ok && !known {
		return nil, web.Fail(404, "TOPIC_NOT_FOUND")
	}
	names, err := l.dir.ChannelNames(r.Context(), topic)
	if err != nil {
		names = nil // consumers need the producers, and they are known
	}
	reply := lookupReply{Channels: merged(names, registered), Producers: []peer{}}
	now := time.Now()
	for _, n := range leaders {
		if n.live && !beyond.hides(&n, now) && n.TCPPort != 0 {
			reply.Producers = append(reply.Producers, n.peer)
		}
	}
	l.extend(&reply, beyond, s, topic, now)
	reply.Producers = append(reply.Producers, l.strangers(s, l.registry.lookup(topic, now))...)
	return reply, nil
}

// nodeLine is one of /nodes. nsqadmin dies if the lists differ in length.
type nodeLine struct {
	peer
	Tombstones []bool   `json:"tombstones"`
	Topics     []string `json:"topics"`
}

// serveNodes lists the live nodes, tombstoned or not, with the topics that they lead; then nsqds that registered.
func (l *lookup) serveNodes(*http.Request, url.Values) (any, error) {
	s := l.dir.Snapshot()
	lines := []*nodeLine{}
	byNode := map[replicate.NodeID]*nodeLine{}
	for _, n := range l.nodes(s) {
		line := &nodeLine{peer: n.peer, Tombstones: []bool{}, Topics: []string{}}
		lines, byNode[n.node] = append(lines, line), line
	}
	now := time.Now()
	l.each(s, func(topic string, n *leader) {
		if line := byNode[n.node]; line != nil && n.live {
			line.Topics = append(line.Topics, topic)
			line.Tombstones = append(line.Tombstones, n.tombstoned(now))
		}
	})
	own := l.ownEndpoints(s)
	for _, line := range l.registry.nodes(now) {
		if !own[line.endpoint()] {
			lines = append(lines, line)
		}
	}
	return struct {
		Producers []*nodeLine `json:"producers"`
	}{lines}, nil
}

// nodes are the live nodes, by id, whatever they lead.
func (l *lookup) nodes(s *meta.Snapshot) []leader {
	if s == nil {
		return []leader{{peer: l.self, live: true}}
	}
	var out []leader
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		if n := s.Nodes[id]; n.Live {
			out = append(out, leader{peer: peerOf(n, l.self.Version), node: id, live: true})
		}
	}
	return out
}

// each calls f for every topic, by name, with each of its leaders.
func (l *lookup) each(s *meta.Snapshot, f func(topic string, n *leader)) {
	for _, topic := range l.topics(s) {
		if s == nil {
			n := l.alone(topic)
			f(topic, &n)
			continue
		}
		all := leadersOf(s, s.Names[topic], l.self.Version)
		for i := range all {
			f(topic, &all[i])
		}
	}
}

// registration is one of /debug.
type registration struct {
	ID string `json:"id"`
	peer
	LastUpdate   int64 `json:"last_update"`
	Tombstoned   bool  `json:"tombstoned"`
	TombstonedAt int64 `json:"tombstoned_at"`
}

// serveDebug shows what would be registered at an nsqlookupd, under its keys.
func (l *lookup) serveDebug(r *http.Request, _ url.Values) (any, error) {
	s, now := l.dir.Snapshot(), time.Now()
	out := map[string][]registration{}
	add := func(key string, n *leader) {
		line := registration{ID: n.RemoteAddress, peer: n.peer, LastUpdate: now.UnixNano()}
		if !n.hidden.IsZero() {
			line.Tombstoned, line.TombstonedAt = n.tombstoned(now), n.hidden.Add(-tombstoneTime).UnixNano()
		}
		out[key] = append(out[key], line)
	}
	for _, n := range l.nodes(s) {
		add("client::", &n)
	}
	var failed error
	l.each(s, func(topic string, n *leader) {
		if !n.live || failed != nil {
			return
		}
		add("topic:"+topic+":", n)
		names, err := l.dir.ChannelNames(r.Context(), topic)
		if !isMissing(err) { // else it was deleted meanwhile
			failed = err
		}
		for _, c := range names {
			add("channel:"+topic+":"+c, n)
		}
	})
	l.registry.debug(func(key string, p *producer, hidden time.Time) {
		n := leader{peer: p.peer, hidden: hidden}
		add(key, &n)
		out[key][len(out[key])-1].LastUpdate = p.lastUpdate.Load()
	})
	return out, failed
}

func isMissing(err error) bool {
	return errors.Is(err, engine.ErrNoTopic) || errors.Is(err, engine.ErrNoChannel) || errors.Is(err, meta.ErrNotFound)
}

// serveTopicCreate knows the parameter partitions beyond nsqlookupd, as nsqd's /topic/create does here. youzan's lookup service calls it partition_num; what
// else that is told (replicator, extend, orderedmulti, syncdisk) every topic here has or is settings of the cluster.
func (l *lookup) serveTopicCreate(r *http.Request, q url.Values) (any, error) {
	topic, err := web.TopicName(q, "INVALID_ARG_TOPIC")
	if err != nil {
		return nil, err
	}
	partitions := 0
	for _, p := range []struct{ name, invalid string }{{"partition_num", "INVALID_ARG_TOPIC_PARTITION_NUM"}, {"partitions", "INVALID_PARTITIONS"}} {
		if !q.Has(p.name) {
			continue
		}
		if partitions, err = strconv.Atoi(q.Get(p.name)); err != nil || partitions < 1 || partitions > engine.MaxPartitions {
			return nil, web.Fail(400, p.invalid)
		}
	}
	if err := l.dir.CreateTopic(r.Context(), topic, partitions); err != nil && !errors.Is(err, meta.ErrExists) {
		return nil, err
	}
	return nil, nil
}

// serveTopicDelete deletes the topic with its messages everywhere, and forgets who registered it. One that is not there is deleted: nsqadmin tells every
// lookup service, one after the other.
func (l *lookup) serveTopicDelete(r *http.Request, q url.Values) (any, error) {
	if !q.Has("topic") {
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	}
	topic := q.Get("topic")
	if err := l.dir.DeleteTopic(r.Context(), topic); err != nil && !isMissing(err) {
		return nil, err
	}
	l.registry.deleteTopic(topic)
	l.mu.Lock()
	delete(l.hidden, topic)
	l.mu.Unlock()
	return nil, nil
}

// channelNames checks both names in nsqlookupd's order.
func channelNames(q url.Values) (topic, channel string, err error) {
	if topic, err = web.TopicName(q, "INVALID_ARG_TOPIC"); err != nil {
		return "", "", err
	}
	if !q.Has("channel") {
		return "", "", web.Fail(400, "MISSING_ARG_CHANNEL")
	}
	if channel = q.Get("channel"); !engine.ValidChannelName(channel) {
		return "", "", web.Fail(400, "INVALID_ARG_CHANNEL")
	}
	return topic, channel, nil
}

func (l *lookup) serveChannelCreate(r *http.Request, q url.Values) (any, error) {
	topic, channel, err := channelNames(q)
	if err != nil {
		return nil, err
	}
	return nil, l.dir.CreateChannel(r.Context(), topic, channel)
}

func (l *lookup) serveChannelDelete(r *http.Request, q url.Values) (any, error) {
	topic, channel, err := channelNames(q)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = l.deleted.Answer(topic+"/"+channel, began, l.dir.DeleteChannel(r.Context(), topic, channel))
	if err != nil && !isMissing(err) {
		return nil, err
	}
	if registered := l.registry.deleteChannel(topic, channel); err != nil && !registered {
		return nil, web.Fail(404, "CHANNEL_NOT_FOUND")
	}
	return nil, nil
}

// serveTombstone hides the leader or the registered nsqd that is named from the topic's lookups for a while. Another node, or a topic that is not there, is no
// error: nsqadmin tells every lookup service.
func (l *lookup) serveTombstone(r *http.Request, q url.Values) (any, error) {
	switch {
	case !q.Has("topic"):
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	case !q.Has("node"):
		return nil, web.Fail(400, "MISSING_ARG_NODE")
	}
	topic, until := q.Get("topic"), time.Now().Add(tombstoneTime)
	s := l.dir.Snapshot()
	l.registry.tombstone(topic, q.Get("node"), until)
	leaders, _ := l.leaders(r.Context(), s, topic)
	for i := range leaders {
		n := &leaders[i]
		if !n.named(q.Get("node")) {
			continue
		}
		if err := l.hide(r.Context(), s, meta.TombstoneKey{Topic: topic, Node: n.node}, until); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (l *lookup) hide(ctx context.Context, s *meta.Snapshot, key meta.TombstoneKey, until time.Time) error {
	if s != nil {
		return l.dir.Tombstone(ctx, key, until)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for topic, end := range l.hidden {
		if !now.Before(end) {
			delete(l.hidden, topic)
		}
	}
	if len(l.hidden) >= maxLocalTombstones {
		return web.Fail(503, "TOO_MANY_TOMBSTONES")
	}
	l.hidden[key.Topic] = until
	return nil
}
