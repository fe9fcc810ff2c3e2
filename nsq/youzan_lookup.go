package nsq

import (
	"cmp"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"penstock/engine/meta"
	"penstock/nsq/internal/listen"
	"penstock/nsq/internal/web"
)

// partitionCounter is a Directory that knows how many partitions topics have on a node that is alone.
type partitionCounter interface {
	PartitionCount(topic string) int
}

// PartitionCount is 0 for a topic that is not there.
func (d engineDirectory) PartitionCount(topic string) int {
	t, ok := d.e.LookupTopic(topic)
	if !ok {
		return 0
	}
	return t.Partitions()
}

// partitionRow is the row of a partition; nil: there is none.
func partitionRow(s *meta.Snapshot, topic string, number uint32) *meta.Partition {
	t := s.Names[topic]
	if t == nil {
		return nil
	}
	return s.Partitions[meta.PartitionID{Topic: t.ID, Partition: number}]
}

// topicMeta is what youzan's clients ask for with metainfo. Every topic here can carry headers; order is its channels' business.
type topicMeta struct {
	PartitionCount int  `json:"partition_num"`
	Replicas       int  `json:"replica"`
	ExtendSupport  bool `json:"extend_support"`
	Ordered        bool `json:"ordered"`
	ManyPerNode    bool `json:"multi_part"`
}

// lookupQuery is what /lookup is asked for beyond nsqlookupd; the zero value is nothing.
type lookupQuery struct {
	asked     bool
	read      bool // tombstones hide nobody: what a node still has must be read
	meta      bool
	partition int // -1: all
}

func parseLookup(q url.Values) (lookupQuery, error) {
	x := lookupQuery{asked: q.Has("access") || q.Has("partition") || q.Has("metainfo"), partition: -1, meta: q.Get("metainfo") != ""}
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

// hides says whether a tombstone keeps the leader out of this answer.
func (x *lookupQuery) hides(n *leader, now time.Time) bool { return !x.read && n.tombstoned(now) }

// extend adds to the reply who leads which partition, and what the topic is like.
func (l *lookup) extend(reply *lookupReply, x lookupQuery, s *meta.Snapshot, topic string, now time.Time) {
	if !x.asked {
		return
	}
	count, replicas := 0, 1
	reply.Partitions = map[string]peer{}
	add := func(number int, n leader) {
		if (x.partition < 0 || x.partition == number) && n.live && n.TCPPort != 0 && !x.hides(&n, now) {
			reply.Partitions[strconv.Itoa(number)] = n.peer
		}
	}
	if s == nil {
		if counter, ok := l.dir.(partitionCounter); ok {
			count = counter.PartitionCount(topic)
		}
		for number := range count {
			add(number, l.alone(topic))
		}
	} else if t := s.Names[topic]; t != nil {
		count, replicas = t.Partitions, t.Replicas
		for number := range count {
			one := *t
			if row := partitionRow(s, topic, uint32(number)); row != nil {
				if n := leaderOf(s, &one, row, l.self.Version); n != nil {
					add(number, *n)
				}
			}
		}
	}
	if x.partition >= 0 {
		reply.Producers = slices.DeleteFunc(reply.Producers, func(p peer) bool {
			led, ok := reply.Partitions[strconv.Itoa(x.partition)]
			return !ok || led != p
		})
	}
	if x.meta {
		reply.Meta = &topicMeta{PartitionCount: count, Replicas: replicas, ExtendSupport: true, ManyPerNode: true}
	}
}

// leaderOf is the node that leads the row; nil: nobody that is known.
func leaderOf(s *meta.Snapshot, t *meta.Topic, row *meta.Partition, nsqVersion string) *leader {
	n := s.Nodes[row.State.Leader]
	if n == nil {
		return nil
	}
	return &leader{
		peer: peerOf(n, nsqVersion), node: n.ID, live: n.Live && n.Boot == row.State.Boot,
		hidden: s.Tombstones[meta.TombstoneKey{Topic: t.Name, Node: n.ID}],
	}
}

// lookupNode is a node that answers lookups, in the words of youzan's clients.
type lookupNode struct {
	ID       string
	NodeIP   string `json:"NodeIp"`
	TCPPort  string `json:"TcpPort"`
	HTTPPort string `json:"HttpPort"`
	RPCPort  string `json:"RpcPort"`
	Epoch    int64
}

// serveListLookup lists the nodes that answer lookups. None is before the others; the first one is named as their leader because clients expect one.
func (l *lookup) serveListLookup(r *http.Request, _ url.Values) (any, error) {
	nodes := []lookupNode{}
	if s := l.dir.Snapshot(); s != nil {
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
		nodes = append(nodes, lookupNode{ID: l.self.RemoteAddress, NodeIP: l.self.BroadcastAddress, HTTPPort: strconv.Itoa(listen.Port(local))})
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
