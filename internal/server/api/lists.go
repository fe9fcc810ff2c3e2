package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/history"
	"penstock/internal/server/stats"
	"penstock/internal/server/web"
)

// Limits of a page of a list.
const (
	// MaxPageCount is the largest number of rows on a page; a page has defaultPageCount unless the request says it.
	MaxPageCount     = 200
	defaultPageCount = 50
	// MaxPageOffset bounds the rows before a page, because each node is asked for as many.
	MaxPageOffset = 100_000
)

// clusterRoutes returns our own routes about what all nodes know together. Any node answers for all.
func (s *Service) clusterRoutes() map[string]web.Route {
	return map[string]web.Route{
		"/topics":    web.On("GET", s.serveTopics, web.ViewNode),
		"/channels":  web.On("GET", s.serveChannels, web.ViewSome),
		"/history":   web.On("GET", s.serveHistory, web.ViewAny),
		"/attention": web.On("GET", s.serveAttention, web.ViewNode),
		"/vitals":    web.On("GET", s.serveVitals, web.ViewNode),
	}
}

// TopicPage is the answer of /topics.
type TopicPage struct {
	Count   int           `json:"count"` // of all topics that match
	Offset  int           `json:"offset"`
	Topics  []ListedTopic `json:"topics"`
	Missing []Missing     `json:"missing"` // their numbers are not in the sums
	// DeadLetters are the topics in which dead letters wait, the most first; only if the request asks for them.
	DeadLetters []DeadLetters `json:"dead_letters,omitempty"`
}

// ListedTopic is a topic with its numbers on all nodes.
type ListedTopic struct {
	history.Topic
	State    health.PartitionState `json:"state"`               // of the partition that is worst off
	Unserved []int                 `json:"unserved_partitions"` // no node that answers serves them
	MadeBy   string                `json:"made_by"`             // see node.Topic.MadeBy
}

// topicRow is a node's part of a ListedTopic.
type topicRow struct {
	history.Topic
	Served []int `json:"served_partitions"` // nil: the node is of a version that does not say it
}

// ChannelPage is the answer of /channels.
type ChannelPage struct {
	Count    int             `json:"count"`
	Offset   int             `json:"offset"`
	Channels []ListedChannel `json:"channels"`
	Missing  []Missing       `json:"missing"`
	// Unserved are the partitions of the topic that no node that answers serves, because they have no leader, or a new
	// one that is not ready. The numbers of channels leave out their messages there.
	Unserved []int `json:"unserved_partitions"`
	// DeadLetters are the dead-letter topics of these channels in which some wait; only if the request asks for them.
	DeadLetters []DeadLetters `json:"dead_letters,omitempty"`
}

// channelsHere is a node's part of a ChannelPage.
type channelsHere struct {
	Channels []ListedChannel `json:"channels"`
	Served   []int           `json:"served_partitions"`
}

// Unserved returns the partitions from 0 to count-1 that are not among served, in order. It returns none if served is
// nil, which means that some node did not say which it serves.
func Unserved(count int, served []int) []int {
	out := []int{}
	if served == nil {
		return out
	}
	has := make([]bool, count)
	for _, n := range served {
		if n >= 0 && n < count {
			has[n] = true
		}
	}
	for n := range has {
		if !has[n] {
			out = append(out, n)
		}
	}
	return out
}

// AllServed returns the partitions that two nodes serve together; nil if one of them does not say it.
func AllServed(a, b []int) []int {
	if a == nil || b == nil {
		return nil
	}
	return append(a, b...)
}

// ListedChannel is a channel with its numbers on all nodes and, if the request asks for them, its consumers: a client
// has one row at each leader that sends it messages.
type ListedChannel struct {
	history.Channel
	Clients []listedClient `json:"clients,omitempty"`
	// Partitions are those in which the most waits, at most MaxPageCount; only if the request asks for them.
	Partitions []PartitionLag `json:"partitions,omitempty"`
}

type listedClient struct {
	stats.Client
	Leader string `json:"leader"`
}

// page reads offset and count.
func page(q url.Values) (offset, count int, err error) {
	count = defaultPageCount
	if q.Has("count") {
		if count, err = strconv.Atoi(q.Get("count")); err != nil || count < 1 || count > MaxPageCount {
			return 0, 0, badArgument("count=%q is not a number from 1 to %d", q.Get("count"), MaxPageCount)
		}
	}
	if q.Has("offset") {
		if offset, err = strconv.Atoi(q.Get("offset")); err != nil || offset < 0 || offset > MaxPageOffset {
			return 0, 0, badArgument("offset=%q is not a number from 0 to %d", q.Get("offset"), MaxPageOffset)
		}
	}
	return offset, count, nil
}

// part returns the page of a list.
func part[T any](all []T, offset, count int) []T {
	all = all[min(offset, len(all)):]
	return all[:min(count, len(all))]
}

// serveTopics lists the topics whose name contains filter. A list by name has the numbers of now; one by a number is
// sorted by what they were at the last look, up to 10 s ago.
func (s *Service) serveTopics(r *http.Request, q url.Values) (any, error) {
	offset, count, err := page(q)
	if err != nil {
		return nil, err
	}
	filter, order := q.Get("filter"), history.Order(cmp.Or(q.Get("sort"), string(history.ByName)))
	if !slices.Contains(history.Orders, order) {
		return nil, badArgument("sort=%q is none of %v", order, history.Orders)
	}
	var names []string
	for _, t := range s.engine.Catalog().Topics() {
		if strings.Contains(t.Name(), filter) {
			names = append(names, t.Name())
		}
	}
	out := TopicPage{Count: len(names), Offset: offset, Missing: []Missing{}}
	if order != history.ByName {
		names = s.busiest(r, order, filter, offset+count, names)
	}
	names = part(names, offset, count)
	rows := make(map[string]*topicRow, len(names))
	out.Missing = s.askAll(r.Context(), question{What: askTopics, Names: names}, func(_ string, text []byte) error {
		var all []topicRow
		err := json.Unmarshal(text, &all)
		for i := range all {
			had := rows[all[i].Name]
			if had == nil {
				rows[all[i].Name] = &all[i]
				continue
			}
			had.Add(&all[i].Topic)
			had.Served = AllServed(had.Served, all[i].Served)
		}
		return err
	})
	if q.Get("dead_letters") == "true" {
		out.DeadLetters = s.deadLetters(r)
	}
	out.Topics = make([]ListedTopic, 0, len(names))
	snap, view := s.engine.Snapshot(), s.engine.View()
	for _, name := range names {
		if row := rows[name]; row != nil {
			listed := ListedTopic{
				Topic: row.Topic, State: worstState(snap, &view, name), Unserved: Unserved(row.Partitions, row.Served),
			}
			if t, ok := s.engine.Catalog().LookupTopic(name); ok {
				listed.MadeBy = t.MadeBy()
			}
			out.Topics = append(out.Topics, listed)
		}
	}
	if order != history.ByName {
		slices.SortStableFunc(out.Topics, func(a, b ListedTopic) int { return order.Compare(&a.Topic, &b.Topic) })
	}
	return out, nil
}

// busiest sorts the first count names by an order: those of which some node has a number above 0, then the others.
func (s *Service) busiest(r *http.Request, o history.Order, filter string, count int, names []string) []string {
	sums := map[string]*history.Topic{}
	ask := question{What: askBusiest, Sort: o, Filter: filter, Count: count}
	_ = s.askAll(r.Context(), ask, func(_ string, text []byte) error { // serveTopics says who is missing
		var all []history.Topic
		err := json.Unmarshal(text, &all)
		for i := range all {
			if sums[all[i].Name] == nil {
				sums[all[i].Name] = &history.Topic{Name: all[i].Name}
			}
			sums[all[i].Name].Add(&all[i])
		}
		return err
	})
	rows := make([]*history.Topic, 0, len(sums))
	for _, row := range sums {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, o.Compare)
	out := make([]string, 0, len(names))
	for _, row := range rows {
		out = append(out, row.Name)
	}
	for _, name := range names {
		if sums[name] == nil {
			out = append(out, name)
		}
	}
	return out
}

// worstState returns the state of the partition that is worst off.
func worstState(snap *meta.Snapshot, v *health.View, topic string) health.PartitionState {
	states := []health.PartitionState{
		health.StateOK, health.StateUnderReplicated, health.StateBelowMinISR, health.StateLeaderless,
	}
	worst := 0
	if snap == nil || snap.Names[topic] == nil {
		return states[worst]
	}
	t := snap.Names[topic]
	for n := range t.Partitions {
		p := snap.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(n)})
		state := health.StateLeaderless
		if p != nil {
			state = v.StateOf(snap, p)
		}
		worst = max(worst, slices.Index(states, state))
	}
	return states[worst]
}

// topicRows returns this node's rows of the topics of these names that exist.
func (s *Service) topicRows(names []string) []topicRow {
	out := make([]topicRow, 0, len(names))
	now := time.Now()
	for _, name := range names {
		for _, t := range s.engine.Stats(name, "") {
			row := topicRow{history.TopicOf(&t, now), t.Served}
			s.history.Rate(&row.Topic)
			out = append(out, row)
		}
	}
	return out
}

// topicOf returns the topic of the query, which must exist if it is named.
func (s *Service) topicOf(q url.Values, needed bool) (string, error) {
	if !q.Has("topic") && !needed {
		return "", nil
	}
	t, err := s.findTopic(q, "INVALID_TOPIC")
	if err != nil {
		return "", err
	}
	return t.Name(), nil
}

func (s *Service) serveChannels(r *http.Request, q url.Values) (any, error) {
	offset, count, err := page(q)
	if err != nil {
		return nil, err
	}
	topic, err := s.topicOf(q, true)
	if err != nil {
		return nil, err
	}
	who, err := s.caller(r)
	if err != nil {
		return nil, err
	}
	served := []int{}
	rows := map[string]*ListedChannel{}
	out := ChannelPage{Offset: offset}
	ask := question{
		What: askChannels, Topic: topic, Channel: q.Get("channel"), Clients: q.Get("clients") == "true", Served: true,
		Partitions: q.Get("partitions") == "true",
	}
	out.Missing = s.askAll(r.Context(), ask, func(node string, text []byte) error {
		var here channelsHere
		err := decodeChannels(text, &here)
		served = AllServed(served, here.Served)
		for i := range here.Channels {
			c := &here.Channels[i]
			for j := range c.Clients {
				c.Clients[j].Leader = node
			}
			for j := range c.Partitions {
				c.Partitions[j].Leader = node
			}
			had := rows[c.Name]
			if had == nil {
				rows[c.Name] = c
				continue
			}
			had.Add(&c.Channel)
			had.Clients = append(had.Clients, c.Clients...)
			had.Partitions = mostWaiting(append(had.Partitions, c.Partitions...))
		}
		return err
	})
	all := make([]ListedChannel, 0, len(rows))
	for _, c := range rows {
		if auth.May(who, auth.View, auth.Channel(topic, c.Name)) {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b ListedChannel) int { return cmp.Compare(a.Name, b.Name) })
	out.Count, out.Channels = len(all), part(all, offset, count)
	if q.Get("dead_letters") == "true" {
		out.DeadLetters = slices.DeleteFunc(s.deadLetters(r), func(l DeadLetters) bool {
			return !slices.ContainsFunc(out.Channels, func(c ListedChannel) bool { return c.DeadLetterTopic == l.Topic })
		})
	}
	out.Unserved = []int{}
	if t, ok := s.engine.Catalog().LookupTopic(topic); ok {
		out.Unserved = Unserved(t.Partitions(), served)
	}
	return out, nil
}

// decodeChannels decodes a node's answer about channels. Older versions answer with the rows only.
func decodeChannels(text []byte, to *channelsHere) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, &to.Channels)
	}
	return json.Unmarshal(text, to)
}

// channelsHere returns this node's answer to a question about channels: the rows, or with q.Served the partitions that
// it serves, too.
func (s *Service) channelsHere(q *question) any {
	here := channelsHere{[]ListedChannel{}, []int{}}
	s.channelRows(q, &here)
	if q.Served {
		return here
	}
	return here.Channels
}

// channelRows adds this node's rows of the channels of a topic.
func (s *Service) channelRows(q *question, here *channelsHere) {
	now := time.Now()
	for _, t := range s.engine.Stats(q.Topic, q.Channel) {
		here.Served = t.Served
		for i := range t.Channels {
			c := ListedChannel{Channel: history.ChannelOf(&t.Channels[i], now)}
			s.history.RateChannel(q.Topic, &c.Channel)
			if q.Clients {
				for _, client := range stats.ChannelOf(&t.Channels[i], true, now).Clients {
					c.Clients = append(c.Clients, listedClient{Client: client})
				}
			}
			if q.Partitions {
				c.Partitions = s.lagsOf(q.Topic, c.Name, now)
			}
			here.Channels = append(here.Channels, c)
		}
	}
}

// ClusterAudit is the answer of /audit?all: the newest entries of all nodes, with the oldest of them first.
type ClusterAudit struct {
	Entries []NodeEntry `json:"entries"`
	// Since is the earliest time since which all nodes that answered know everything, refusals of strangers, too; missing
	// if one of them does not say.
	Since   time.Time   `json:"since,omitzero"`
	Known   []NodeKnown `json:"known"`
	Missing []Missing   `json:"missing"`
}

// NodeEntry is an entry of a node's audit.
type NodeEntry struct {
	Node string `json:"node"`
	audit.Entry
}

// NodeKnown says what the audit of a node lacks.
type NodeKnown struct {
	Node string `json:"node"`
	audit.Known
}

// serveAudit returns the entries of this node or, with the parameter all, the newest ones of all nodes: as many as
// count says. Of this node alone they are all if there is no count.
func (s *Service) serveAudit(r *http.Request, q url.Values) (any, error) {
	_, count, err := page(q)
	if err != nil {
		return nil, err
	}
	if !q.Has("all") {
		list := s.audit.List()
		if q.Has("count") {
			list.Entries = audit.Newest(list.Entries, count, func(e *audit.Entry) *audit.Entry { return e })
		}
		return list, nil
	}
	out := ClusterAudit{Entries: []NodeEntry{}, Known: []NodeKnown{}}
	out.Missing = s.askAll(r.Context(), question{What: askAudit}, func(node string, text []byte) error {
		var list audit.List
		err := json.Unmarshal(text, &list)
		for _, e := range list.Entries {
			out.Entries = append(out.Entries, NodeEntry{node, e})
		}
		out.Known = append(out.Known, NodeKnown{node, list.Known})
		return err
	})
	out.Since = allSince(out.Known)
	slices.SortStableFunc(out.Entries, func(a, b NodeEntry) int { return a.Time.Compare(b.Time) })
	out.Entries = audit.Newest(out.Entries, count, func(e *NodeEntry) *audit.Entry { return &e.Entry })
	return out, nil
}

// allSince returns the latest time of all nodes; zero if one does not say.
func allSince(known []NodeKnown) (since time.Time) {
	for _, k := range known {
		for _, at := range []time.Time{k.Since, k.StrangersSince} {
			if at.IsZero() {
				return time.Time{}
			}
			if at.After(since) {
				since = at
			}
		}
	}
	return since
}
