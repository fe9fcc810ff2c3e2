package lookup

import (
	"cmp"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"penstock/internal/meta"
	"penstock/internal/server/listen"
	"penstock/internal/server/web"
)

// partitionCounter is implemented by a Directory that knows the number of partitions of a topic on a lone node, such as
// the engine's.
type partitionCounter interface {
	PartitionCount(topic string) int
}

// PartitionCount returns the number of the topic's partitions, or 0 if there is no such topic.
func (d engineDirectory) PartitionCount(topic string) int {
	t, ok := d.e.Catalog().LookupTopic(topic)
	if !ok {
		return 0
	}
	return t.Partitions()
}

// topicMeta is the description of a topic that youzan's clients request with metainfo. Every topic here can carry
// headers (extend_support). Ordered delivery is a setting of the channel here, not of the topic.
type topicMeta struct {
	PartitionCount int  `json:"partition_num"`
	Replicas       int  `json:"replica"`
	ExtendSupport  bool `json:"extend_support"`
	Ordered        bool `json:"ordered"`
	ManyPerNode    bool `json:"multi_part"`
}

// extraQuery holds the parameters of /lookup that youzan's clients use and nsqlookupd does not have.
type extraQuery struct {
	asked     bool // the query has at least one of these parameters
	read      bool // the client consumes, also what is still on a tombstoned node: tombstones do not apply
	meta      bool
	partition int // -1: all
}

func parseExtraQuery(q url.Values) (extraQuery, error) {
	x := extraQuery{
		asked: q.Has("access") || q.Has("partition") || q.Has("metainfo"), partition: -1, meta: q.Get("metainfo") != "",
	}
	switch q.Get("access") {
	case "r":
		x.read = true
	case "", "w":
	default:
		return x, web.Fail(400, "INVALID_ACCESS_MODE")
	}
	if text := q.Get("partition"); text != "" && text != "*" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return x, web.Fail(400, "INVALID_PARTITION")
		}
		x.partition = n
	}
	return x, nil
}

// hides reports whether a tombstone keeps the leader out of this answer.
func (x *extraQuery) hides(n *leader, now time.Time) bool { return !x.read && n.tombstoned(now) }

// extend adds the leader of each partition, and the topic's description, to the reply.
func (a *api) extend(reply *lookupReply, x extraQuery, s *meta.Snapshot, topic string, now time.Time) {
	if !x.asked {
		return
	}
	count, replicas := 0, 1
	reply.Partitions = map[string]Producer{}
	add := func(number int, n leader) {
		if (x.partition < 0 || x.partition == number) && n.live && n.TCPPort != 0 && !x.hides(&n, now) {
			reply.Partitions[strconv.Itoa(number)] = n.Producer
		}
	}
	if s == nil {
		if counter, ok := a.dir.(partitionCounter); ok {
			count = counter.PartitionCount(topic)
		}
		for number := range count {
			add(number, a.alone(topic))
		}
	} else if t := s.Names[topic]; t != nil {
		count, replicas = t.Partitions, t.Replicas
		for number := range count {
			if row := s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(number)}); row != nil {
				if n := leaderOf(s, t, row, a.self.Version); n != nil {
					add(number, *n)
				}
			}
		}
	}
	if x.partition >= 0 {
		reply.Producers = slices.DeleteFunc(reply.Producers, func(p Producer) bool {
			led, ok := reply.Partitions[strconv.Itoa(x.partition)]
			return !ok || led != p
		})
	}
	if x.meta {
		reply.Meta = &topicMeta{PartitionCount: count, Replicas: replicas, ExtendSupport: true, ManyPerNode: true}
	}
}

// leaderOf returns the node that leads the partition of the row, or nil if that node is unknown.
func leaderOf(s *meta.Snapshot, t *meta.Topic, row *meta.Partition, nsqVersion string) *leader {
	n := s.Nodes[row.State.Leader]
	if n == nil {
		return nil
	}
	return &leader{
		Producer: producerOf(n, nsqVersion), node: n.ID, live: n.Live && n.Boot == row.State.Boot,
		hidden: s.Tombstones[meta.TombstoneKey{Topic: t.Name, Node: n.ID}],
	}
}

// lookupNode describes a node that answers lookups, in the format of youzan's clients.
type lookupNode struct {
	ID       string
	NodeIP   string `json:"NodeIp"`
	TCPPort  string `json:"TcpPort"`
	HTTPPort string `json:"HttpPort"`
	RPCPort  string `json:"RpcPort"`
	Epoch    int64
}

// serveListLookup lists the nodes that answer lookups. All of them are equal, but youzan's clients expect a leader, so
// the answer calls the first node the leader.
func (a *api) serveListLookup(r *http.Request, _ url.Values) (any, error) {
	nodes := []lookupNode{}
	if s := a.dir.Snapshot(); s != nil {
		for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
			n := s.Nodes[id]
			host, port, err := net.SplitHostPort(n.Lookup)
			if !n.Live || err != nil || portOf(n.Lookup) == 0 {
				continue
			}
			host = cmp.Or(n.Host, host)
			nodes = append(nodes, lookupNode{ID: n.Name, NodeIP: host, HTTPPort: port})
		}
	} else if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		nodes = append(nodes, lookupNode{
			ID: a.self.RemoteAddress, NodeIP: a.self.BroadcastAddress, HTTPPort: strconv.Itoa(listen.Port(local)),
		})
	}
	reply := struct {
		Nodes  []lookupNode `json:"lookupdnodes"`
		Leader lookupNode   `json:"lookupdleader"`
	}{Nodes: nodes}
	if len(nodes) > 0 {
		reply.Leader = nodes[0]
	}
	return reply, nil
}
