package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/internal/server/history"
	"penstock/internal/server/metrics"
	"penstock/internal/server/web"
)

// askTimeout is the longest wait for another node's answer. A node that hangs is named, and the others are shown.
const askTimeout = 2 * time.Second

// question is what nodes ask each other, over the connections between nodes, for requests that are about the whole
// cluster (node.AskNode). The node that was asked by a client has checked the client's permission.
type question struct {
	What    questionKind `json:"what"`
	Topic   string       `json:"topic,omitempty"`
	Channel string       `json:"channel,omitempty"`
	Names   []string     `json:"names,omitempty"` // of topics
	Clients bool         `json:"clients,omitempty"`
	Served  bool         `json:"served,omitempty"` // the answer says which partitions the node serves
	// Partitions: the answer has the lag of each partition. Hours: it has the points of the last hours.
	Partitions bool `json:"partitions,omitempty"`
	Hours      bool `json:"hours,omitempty"`

	Sort   history.Order `json:"sort,omitempty"`
	Filter string        `json:"filter,omitempty"`
	Count  int           `json:"count,omitempty"`
	After  int64         `json:"after,omitempty"`
}

type questionKind string

// The kinds, with the fields that they use and the answer.
const (
	askBusiest questionKind = "busiest" // Sort, Filter, Count. Answer: []history.Topic, as they were at the last look
	askLetters questionKind = "letters" // Answer: []DeadLetters of the partitions that the node leads
	askTopics  questionKind = "topics"  // Names. Answer: []topicRow
	// Topic, Channel, Clients, Served, Partitions. Answer: channelsHere or []ListedChannel
	askChannels  questionKind = "channels"
	askAttention questionKind = "attention" // Names: keys of rows, or none. Answer: []history.Attention
	askVitals    questionKind = "vitals"    // Answer: Vitals
	askHistory   questionKind = "history"   // Topic, Channel, Hours. Answer: history.Series
	askKept      questionKind = "kept"      // Topic, Channel, Names of nodes, Hours. Answer: map[string]history.Series
	askRecords   questionKind = "records"   // After, Hours. Answer: records
	askAudit     questionKind = "audit"     // Answer: audit.List
	askConfig    questionKind = "config"    // Answer: Settings
	askClients   questionKind = "clients"   // Answer: stats.Connections
)

func (s *Service) AnswerQuestion(_ context.Context, text []byte) ([]byte, error) {
	var q question
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, fmt.Errorf("nsq: the question cannot be read: %w", err)
	}
	var v any
	switch q.What {
	case askBusiest:
		v = s.history.Busiest(q.Sort, q.Filter, q.Count)
	case askLetters:
		v = s.lettersHere()
	case askTopics:
		v = s.topicRows(q.Names)
	case askChannels:
		v = s.channelsHere(&q)
	case askHistory:
		v = s.past(q.Hours).Series(q.Topic, q.Channel)
	case askAttention:
		v = s.attentionHere(q.Names)
	case askVitals:
		v = s.vitalsHere()
	case askKept:
		v = s.keptHere(&q)
	case askRecords:
		var r records
		r.Records, r.More = s.past(q.Hours).Records(q.After)
		v = r
	case askAudit:
		v = s.audit.List()
	case askConfig:
		v = s.settingsHere()
	case askClients:
		v = s.opts.Stats.Connections()
	default:
		return nil, fmt.Errorf("nsq: this version does not know the question %q", q.What)
	}
	return json.Marshal(v)
}

// Missing is a node whose part an answer lacks.
type Missing struct {
	Node string `json:"node"`
	Why  string `json:"why"`
}

// Name returns the name of this node, as it is in the answers about a cluster. A single node that nobody has named is
// called by its host: its id says nothing to people.
func (s *Service) Name() string {
	id := s.engine.Info().NodeID
	if _, err := uuid.Parse(id); err == nil && s.engine.Snapshot() == nil {
		id = ""
	}
	return cmp.Or(id, s.opts.Hostname)
}

// askAll asks this node and all others, and passes the answers to take, one after the other, in the order of the nodes'
// names. Missing are the nodes that gave none: those that are known to be dead are not asked.
func (s *Service) askAll(ctx context.Context, q question, take func(node string, answer []byte) error) []Missing {
	text, err := json.Marshal(q)
	if err != nil {
		panic("BUG: " + err.Error()) // it has only names and numbers
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	type answered struct {
		node string
		text []byte
		why  string
	}
	nodes := s.members()
	answers := make([]answered, len(nodes))
	var wg sync.WaitGroup
	view := s.engine.View()
	for i, n := range nodes {
		a := &answers[i]
		a.node = n.Name
		if a.why = absence(&view, n, s.engine.Node().ID == n.ID); a.why != "" {
			continue
		}
		wg.Go(func() { a.text, a.why = s.askOne(ctx, n, text) })
	}
	wg.Wait()
	missing := []Missing{}
	for i := range answers {
		a := &answers[i]
		if a.why == "" {
			if err := take(a.node, a.text); err != nil {
				a.why = "its answer cannot be read: " + err.Error()
			}
		}
		if a.why != "" {
			missing = append(missing, Missing{a.node, a.why})
		}
	}
	return missing
}

// askOne asks one node, and returns its answer, or why there is none.
func (s *Service) askOne(ctx context.Context, n *meta.Node, question []byte) (answer []byte, why string) {
	answer, err := s.engine.AskNode(ctx, n.ID, question)
	switch {
	case err == nil:
		return answer, ""
	case ctx.Err() != nil:
		return nil, fmt.Sprintf("it did not answer within %v", askTimeout)
	}
	return nil, health.Text(err)
}

// onNode answers a request that is about the node which the query names, or about this one: with that node's answer to
// a question.
func (s *Service) onNode(what questionKind) web.Endpoint {
	return func(r *http.Request, q url.Values) (any, error) {
		text, err := json.Marshal(question{What: what})
		if err != nil {
			panic("BUG: " + err.Error()) // it has only a name
		}
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		view := s.engine.View()
		for _, n := range s.members() {
			if n.Name != cmp.Or(q.Get("node"), s.Name()) {
				continue
			}
			why := absence(&view, n, s.engine.Node().ID == n.ID)
			if why == "" {
				text, why = s.askOne(ctx, n, text)
			}
			if why != "" {
				return nil, web.Fail(http.StatusServiceUnavailable, "node "+n.Name+" does not say it: "+why)
			}
			return json.RawMessage(text), nil
		}
		return nil, web.Fail(http.StatusNotFound, "there is no such node (any more)")
	}
}

// absence says why a node is not asked; "": it is. The text of a node that stays dead stays the same, because screen
// readers say what is new. It has an age only if nothing says that the node is dead but an old row of the store.
func absence(v *health.View, n *meta.Node, self bool) string {
	p, age := v.Presence(n)
	_, ended := v.Gone[n.ID]
	switch {
	case self || p == health.Live:
		return ""
	case p == health.Dead && (ended || !v.StoreSilent()):
		return "it is dead"
	case p == health.Dead:
		return fmt.Sprintf("it is dead, as was known %v ago", age.Round(time.Second))
	}
	return fmt.Sprintf("it is not known whether it is alive: the metadata store has not answered for %v",
		age.Round(time.Second))
}

// members returns the nodes of the cluster by name; on a single node, this node.
func (s *Service) members() []*meta.Node {
	snap := s.engine.Snapshot()
	if snap == nil {
		return []*meta.Node{{ID: s.engine.Node().ID, Name: s.Name(), Live: true}}
	}
	all := make([]*meta.Node, 0, len(snap.Nodes))
	for _, n := range snap.Nodes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *meta.Node) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Look adds the numbers of now to the history of the minutes and to that of the hours, and returns them.
func (s *Service) Look(now time.Time) *history.Look {
	publishes := s.opts.Publishes.NSQ.Counts()
	for _, d := range []*metrics.Durations{&s.opts.Publishes.HTTP, &s.opts.Publishes.Native} {
		for i, n := range d.Counts() {
			publishes[i] += n
		}
	}
	flush := s.engine.CommitStats().Flush
	l := &history.Look{At: now, Topics: s.engine.Stats("", ""), Publishes: publishes, Flushes: flush[:]}
	for _, p := range s.pasts {
		p.add(l)
	}
	return l
}
