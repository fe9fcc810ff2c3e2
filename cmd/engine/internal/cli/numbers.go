package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/cmd/engine/internal/client"
	"penstock/internal/cluster/admin"
	"penstock/internal/node/health"
	"penstock/internal/server/api"
	"penstock/internal/server/stats"
)

// NodeStats is the part of a node's /stats that is shown.
type NodeStats struct {
	Topics  []TopicNumbers `json:"topics"`
	Storage struct {
		Failed bool `json:"failed"`
	} `json:"storage"`
}

// TopicNumbers are the numbers of a topic, of one node or added up.
type TopicNumbers struct {
	Name         string `json:"topic_name"`
	Depth        int64  `json:"depth"`
	Published    uint64 `json:"published_count"` // ever
	MessageCount uint64 `json:"message_count"`   // since the start of each node
	MessageBytes uint64 `json:"message_bytes"`   // likewise
	StoredBytes  int64  `json:"stored_bytes"`    // of the leaders' logs, now
	Producers    int    `json:"producer_count"`
	MaxProducers int    `json:"max_producer_count"` // in the partition that knows the most
	Connected    int    `json:"connected_producer_count"`
	Partitions   int    `json:"partition_count"`   // on any node; 0: unknown
	Served       []int  `json:"served_partitions"` // their channels are counted; nil: unknown, an older version
	Paused       bool   `json:"paused"`
	OverQuota    bool   `json:"over_quota"`
	// DelaysRefused: partitions that refuse delayed messages now.
	DelaysRefused int              `json:"delays_refused"`
	ReadOnly      int              `json:"read_only_partitions"`     // that store nothing new
	MadeBy        string           `json:"made_by"`                  // see node.Topic.MadeBy
	Failed        bool             `json:"stores_nothing,omitempty"` // a node that serves some of it stores nothing more
	Channels      []ChannelNumbers `json:"channels,omitempty"`
}

// ChannelNumbers are the numbers of a channel, of one node or added up.
type ChannelNumbers struct {
	Topic         string `json:"topic_name,omitempty"`
	Name          string `json:"channel_name"`
	Depth         int64  `json:"depth"`
	InFlightCount int    `json:"in_flight_count"`
	DeferredCount int    `json:"deferred_count"`
	MessageCount  uint64 `json:"message_count"`
	RequeueCount  uint64 `json:"requeue_count"`
	TimeoutCount  uint64 `json:"timeout_count"`
	ClientCount   int    `json:"client_count"` // at the leader that has the most
	Paused        bool   `json:"paused"`
	stats.Trouble
}

// numbersTimeout is how long a node may take to say its numbers. Beyond it, the others' numbers are shown without it.
const numbersTimeout = 5 * time.Second

// While its leadership moves, no node serves a partition for a moment. Commands wait serveWait, and look again every
// serveRetry, before they report such a partition. A node that dies leads nothing after about two seconds.
const (
	serveWait  = 3 * time.Second
	serveRetry = 100 * time.Millisecond
)

// maxNamed bounds the topics, and the partitions of each, that a sentence names.
const maxNamed = 8

// Topics returns the numbers of all topics, or of one topic, which must exist. In a cluster it adds up the numbers of
// all nodes, because every node counts only what it leads. If some of the nodes do not answer, or nobody serves a
// partition for serveWait, missing names them and the numbers are those of the others; if no node answers, topics
// returns an error.
func (o *Operator) Topics(ctx context.Context, topic ...string) (all []TopicNumbers, missing, err error) {
	for begun := time.Now(); ; {
		all, gone, err := o.look(ctx, topic...)
		if err != nil {
			return nil, nil, err
		}
		unserved := unservedOf(all)
		if len(gone) > 0 || len(unserved) == 0 || time.Since(begun) > serveWait {
			return all, Partial(append(gone, unserved...)), nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(serveRetry):
		}
	}
}

// TopicsNow returns what topics returns, but does not wait until every partition is served.
func (o *Operator) TopicsNow(ctx context.Context, topic ...string) (all []TopicNumbers, missing, err error) {
	all, gone, err := o.look(ctx, topic...)
	return all, Partial(append(gone, unservedOf(all)...)), err
}

// Partial returns the error for a result that lacks something, with exit code ExitPartial, or nil if lacks is empty.
func Partial(lacks []string) error {
	if len(lacks) == 0 {
		return nil
	}
	return Fail(ExitPartial, fmt.Errorf("the result is partial: %s", strings.Join(lacks, "; ")))
}

// unservedOf says which partitions no node serves, a sentence for each topic.
func unservedOf(all []TopicNumbers) (lacks []string) {
	for i := range all {
		n := &all[i]
		none := api.Unserved(n.Partitions, n.Served)
		if len(none) == 0 {
			continue
		}
		if len(lacks) == maxNamed {
			return append(lacks, "the same holds for further topics")
		}
		lacks = append(lacks, fmt.Sprintf("nobody serves %s of topic %s: what its channels have there is not counted",
			PartitionNames(none), n.Name))
	}
	return lacks
}

// PartitionNames names partitions in a sentence, at most maxNamed of them.
func PartitionNames(ns []int) string {
	if len(ns) == 1 {
		return fmt.Sprint("partition ", ns[0])
	}
	var text []string
	for _, n := range ns[:min(len(ns), maxNamed)] {
		text = append(text, strconv.Itoa(n))
	}
	more := ""
	if len(ns) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(ns)-maxNamed)
	}
	return "partitions " + strings.Join(text, ", ") + more
}

// look is TopicsNow, but gone names only the nodes that do not answer.
func (o *Operator) look(ctx context.Context, topic ...string) (all []TopicNumbers, gone []string, err error) {
	nodes, gone, err := o.Members(ctx)
	if err != nil {
		return nil, nil, err
	}
	type answer struct {
		all []TopicNumbers
		err error
	}
	answers := make([]answer, len(nodes))
	var asking sync.WaitGroup
	for i, n := range nodes {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, numbersTimeout)
			defer cancel()
			answers[i].all, answers[i].err = NumbersOf(ctx, n.Client, topic...)
		})
	}
	asking.Wait()
	sum, answered := map[string]*TopicNumbers{}, 0
	for i := range answers {
		all, err := answers[i].all, answers[i].err
		switch {
		case err != nil && len(nodes) == 1 && len(gone) == 0, errors.Is(err, client.ErrUsage):
			return nil, nil, err
		case err != nil:
			gone = append(gone, fmt.Sprintf("node %s does not say its numbers (%v)", nodes[i].Name, err))
			continue
		}
		answered++
		for i := range all {
			if had := sum[all[i].Name]; had != nil {
				had.Add(&all[i])
			} else {
				sum[all[i].Name] = &all[i]
			}
		}
	}
	if answered == 0 {
		return nil, nil, Fail(ExitOther, fmt.Errorf("nobody says any numbers: %s", strings.Join(gone, "; ")))
	}
	if len(topic) > 0 && len(sum) == 0 && len(gone) == 0 {
		return nil, nil, fmt.Errorf("there is no topic %s (node at %s)", topic[0], o.Client.Address)
	}
	all = make([]TopicNumbers, 0, len(sum))
	for _, name := range slices.Sorted(maps.Keys(sum)) {
		all = append(all, *sum[name])
	}
	return all, gone, nil
}

// member is a node of the cluster that can be asked.
type member struct {
	Name   string
	Client *client.Client
}

// Members returns the node that o asks and all live nodes of its cluster. gone says which nodes cannot be asked and
// why, unless the others lead all that they led.
func (o *Operator) Members(ctx context.Context) (out []member, gone []string, err error) {
	var st admin.Status
	switch err := o.Client.Get(ctx, "/cluster/status", url.Values{}, &st); {
	case errors.Is(err, client.ErrNoSuchRequest):
		return []member{{o.Client.Address, &o.Client}}, nil, nil // the node is in no cluster
	case err != nil:
		return nil, nil, err
	}
	for i := range st.Nodes {
		n := &st.Nodes[i]
		if n.Name == st.Node {
			out = append(out, member{n.Name, &o.Client})
			continue
		}
		if !n.Live {
			if st.Leaderless > 0 {
				gone = append(gone, fmt.Sprintf("node %s is %s", n.Name, NodeState(n)))
			}
			continue
		}
		c, err := o.Client.At(n.HTTP, n.HTTPS)
		if err != nil {
			gone = append(gone, fmt.Sprintf("node %s cannot be asked: %v", n.Name, err))
			continue
		}
		out = append(out, member{n.Name, c})
	}
	if len(out) == 0 {
		out = append(out, member{o.Client.Address, &o.Client})
	}
	return out, gone, nil
}

// Add adds another node's numbers of the same topic.
func (n *TopicNumbers) Add(m *TopicNumbers) {
	n.Depth += m.Depth
	n.Published += m.Published
	n.MessageCount += m.MessageCount
	n.MessageBytes += m.MessageBytes
	n.StoredBytes += m.StoredBytes
	n.Producers += m.Producers
	n.Connected += m.Connected
	n.MaxProducers = max(n.MaxProducers, m.MaxProducers)
	n.Partitions = max(n.Partitions, m.Partitions)
	n.Served = api.AllServed(n.Served, m.Served)
	n.Paused = n.Paused || m.Paused
	n.OverQuota = n.OverQuota || m.OverQuota
	n.DelaysRefused += m.DelaysRefused
	n.ReadOnly += m.ReadOnly
	n.MadeBy = cmp.Or(n.MadeBy, m.MadeBy)
	n.Failed = n.Failed || m.Failed
	for _, c := range m.Channels {
		i := slices.IndexFunc(n.Channels, func(had ChannelNumbers) bool { return had.Name == c.Name })
		if i < 0 {
			n.Channels = append(n.Channels, c)
			continue
		}
		had := &n.Channels[i]
		had.Depth += c.Depth
		had.InFlightCount += c.InFlightCount
		had.DeferredCount += c.DeferredCount
		had.MessageCount += c.MessageCount
		had.RequeueCount += c.RequeueCount
		had.TimeoutCount += c.TimeoutCount
		had.ClientCount = max(had.ClientCount, c.ClientCount) // a consumer mostly subscribes at each leader
		had.Paused = had.Paused || c.Paused
		had.Trouble.Add(&c.Trouble)
	}
}

// NumbersOf returns the numbers of one node.
func NumbersOf(ctx context.Context, c *client.Client, topic ...string) ([]TopicNumbers, error) {
	q := url.Values{"format": {"json"}, "include_clients": {"false"}, "include_mem": {"false"}}
	if len(topic) > 0 {
		q.Set("topic", topic[0])
	}
	var st NodeStats
	if err := c.Get(ctx, "/stats", q, &st); err != nil {
		return nil, err
	}
	for i := range st.Topics {
		st.Topics[i].Failed = st.Storage.Failed && (st.Topics[i].Served == nil || len(st.Topics[i].Served) > 0)
	}
	return st.Topics, nil
}

// ChannelsOf returns all channels, each with the name of its topic.
func ChannelsOf(all []TopicNumbers) []ChannelNumbers {
	out := []ChannelNumbers{}
	for i := range all {
		for _, c := range all[i].Channels {
			c.Topic = all[i].Name
			out = append(out, c)
		}
	}
	return out
}

// StateOf says, besides state, which states the channel has that only an operator or its consumers can end.
func (n *TopicNumbers) StateOf(c *ChannelNumbers) string {
	return joinStates(n.state(n.Paused || c.Paused), []stateWord{
		{n.ReadOnly > 0, "read only"},
		{c.Skipping, "skipping"},
		{c.FullPartitions > 0, "full"},
		{c.Starved, "starved"},
		{c.Dropping, "dropping"},
		{c.AsideCount > 0, "dead letters aside"},
		{n.DelaysRefused > 0, "delays refused"},
	})
}

// OwnState says, besides state, whether the topic is read-only, and whether it refuses delayed messages.
func (n *TopicNumbers) OwnState() string {
	return joinStates(n.state(n.Paused), []stateWord{
		{n.ReadOnly > 0, "read only"},
		{n.DelaysRefused > 0, "delays refused"},
	})
}

type stateWord struct {
	holds bool
	word  string
}

// joinStates returns the state with the words that hold, which replace an ok.
func joinStates(state string, more []stateWord) string {
	states := []string{state}
	for _, s := range more {
		if s.holds {
			states = append(states, s.word)
		}
	}
	if len(states) > 1 && states[0] == "ok" {
		states = states[1:]
	}
	return strings.Join(states, ", ")
}

// state says whether the topic, or one of its channels, is paused or, before that, whether somebody serves it, and
// stores what is published and confirmed.
func (n *TopicNumbers) state(paused bool) string {
	switch none := len(api.Unserved(n.Partitions, n.Served)); {
	case none > 0 && none == n.Partitions:
		return "not served"
	case none > 0:
		return "partly served"
	case n.Failed:
		return "stores nothing"
	case n.OverQuota && paused:
		return "over quota, paused"
	case n.OverQuota:
		return "over quota"
	case paused:
		return "paused"
	}
	return "ok"
}

// Unfinished says what a channel has not finished, in numbers.
func (c *ChannelNumbers) Unfinished() string {
	return fmt.Sprintf("%s wait, %d are in flight and %d deferred", InNumber(c.Depth, "message", "messages"),
		c.InFlightCount, c.DeferredCount)
}

// NodeState says whether a node is live. The age of an unknown or dead one says how old that knowledge is.
func NodeState(n *admin.Node) string {
	state := strings.ReplaceAll(string(n.Presence), "_", " ")
	switch {
	case n.Presence == "" && n.Live: // the node that answers is of a version that does not say more
		state = "live"
	case n.Presence == "":
		state = "dead"
	case n.Presence == health.Dead:
		state += " for " + health.Age(time.Duration(n.PresenceMs)*time.Millisecond)
	case n.Presence == health.Unknown:
		state += " since " + health.Age(time.Duration(n.PresenceMs)*time.Millisecond)
	}
	if n.Draining {
		state += ", draining"
	}
	if n.Controller {
		state += ", controller"
	}
	return state
}
