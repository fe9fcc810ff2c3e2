package native

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"penstock/internal/server/native/wire"
	"penstock/internal/server/stats"
	"penstock/netproto"
)

// Meter is a snapshot of a Server's counts since it began.
type Meter struct {
	Connections  int // open ones
	Strangers    int // those of them that have to send Auth and have not
	AuthFailures uint64
	InFlight     int64 // bytes of requests that are not answered yet
	Output       int64 // bytes that are not written to their connections yet

	Subscriptions, Readers int // open ones, of all connections

	Requests   map[Answered]uint64
	TurnedAway map[string]uint64 // connections that were refused or ended by this node, by reason

	ReceivedBytes, SentBytes uint64 // of frames
}

// Answered is a kind of request and the status of its answer. Request is "other" for types that this version does not
// know.
type Answered struct{ Request, Status string }

// Reasons of Meter.TurnedAway.
const (
	awayHandshake = "handshake"       // it failed, or there were too many connections
	awayCrowded   = "unauthenticated" // Options.MaxStrangers newer ones came
	awayTime      = "time"            // no Auth came in time
)

const (
	maxTypeCount   = 1 + int(wire.TypeRecall-firstClientType) + 1 // index 0: other types
	maxStatusCount = 32
)

// meter counts. Any goroutine may call it.
type meter struct {
	requests     [maxTypeCount][maxStatusCount]atomic.Uint64
	away         map[string]*atomic.Uint64 // the map does not change
	authFailures atomic.Uint64

	// of connections that have ended
	received, sent atomic.Uint64
}

func newMeter() meter {
	return meter{away: map[string]*atomic.Uint64{
		awayHandshake: new(atomic.Uint64), awayCrowded: new(atomic.Uint64), awayTime: new(atomic.Uint64),
	}}
}

func (m *meter) count(t netproto.Type, s netproto.Status) {
	i := 0
	if _, ok := requests[t]; ok {
		i = 1 + int(t-firstClientType)
	}
	m.requests[i][min(int(s), maxStatusCount-1)].Add(1)
}

func (m *meter) turnedAway(reason string) { m.away[reason].Add(1) }

// Meter returns the counts.
func (s *Server) Meter() Meter {
	m := &s.meter
	out := Meter{
		AuthFailures: m.authFailures.Load(), InFlight: s.inFlight.Used(), Subscriptions: int(s.subscribed.Used()),
		Output: s.output.Used(), Readers: int(s.readers.Used()),
		Requests: map[Answered]uint64{}, TurnedAway: map[string]uint64{},
	}
	for reason, n := range m.away {
		out.TurnedAway[reason] = n.Load()
	}
	for i := range m.requests {
		name := "other"
		if i > 0 {
			name = typeName(firstClientType + netproto.Type(i-1))
		}
		for status := range m.requests[i] {
			if n := m.requests[i][status].Load(); n > 0 {
				out.Requests[Answered{name, netproto.Status(status).String()}] += n
			}
		}
	}
	s.mu.Lock()
	all := maps.Clone(s.sessions)
	out.Connections, out.Strangers = len(all), s.strangers.Size()
	out.ReceivedBytes, out.SentBytes = m.received.Load(), m.sent.Load() // with mu: see Server.leave
	s.mu.Unlock()
	for x := range all {
		st := x.conn.Stats()
		out.ReceivedBytes += st.ReceivedBytes
		out.SentBytes += st.SentBytes
	}
	return out
}

// Producers returns how many of the open connections have published to each topic.
func (s *Server) Producers() map[string]int {
	out := map[string]int{}
	for _, x := range s.all() {
		for _, p := range x.pubCounts("") {
			out[p.Topic]++
		}
	}
	return out
}

// Publishers describes the open connections that have published to topic; "": to any.
func (s *Server) Publishers(topic string) (out []stats.Client) {
	for _, x := range s.all() {
		if counts := x.pubCounts(topic); len(counts) > 0 {
			c := x.label().Describe()
			c.State, c.PubCounts = stats.StateInit, counts
			out = append(out, c)
		}
	}
	return out
}

// pubCounts returns how many messages to topic, or to each one, were answered OK, if any.
func (s *session) pubCounts(topic string) (out []stats.PubCount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.published {
		if count := n.Load(); count > 0 && (topic == "" || topic == name) {
			out = append(out, stats.PubCount{Topic: name, Count: count})
		}
	}
	slices.SortFunc(out, func(a, b stats.PubCount) int { return cmp.Compare(a.Topic, b.Topic) })
	return out
}

// typeName is what people read of a type.
func typeName(t netproto.Type) string {
	if r, ok := requests[t]; ok {
		return r.name
	}
	return t.String()
}
