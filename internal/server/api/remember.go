package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/internal/node/names"
	"penstock/internal/server/history"
	"penstock/internal/server/lines"
	"penstock/internal/server/web"
)

// closePatience is how long Remember waits for a disk that does not take the end of the history.
const closePatience = time.Second

// keepers is how many nodes keep what a node remembers, besides itself.
const keepers = 2

// records is the answer to askRecords.
type records struct {
	Records []json.RawMessage `json:"records"`
	More    bool              `json:"more"`
}

// past is what this node remembers at one distance between points, and what it keeps of other nodes. Service.Remember
// sets file; nil: there is no disk.
type past struct {
	*history.Log
	kept *history.Kept
	name string // of the file
	file atomic.Pointer[lines.Writer]
}

// newPasts returns that of the last minutes and that of the last hours.
func newPasts() (all [2]*past) {
	all[0] = &past{Log: history.New(history.Interval), kept: history.NewKept(history.Interval), name: "points"}
	all[1] = &past{Log: history.New(history.HoursInterval), kept: history.NewKept(history.HoursInterval), name: "hours"}
	return all
}

// past returns the one that a question is about.
func (s *Service) past(hours bool) *past {
	if hours {
		return s.pasts[1]
	}
	return s.pasts[0]
}

// open reads what an earlier process remembered.
func (p *past) open(o *Options) {
	l := lines.Options{
		Dir: filepath.Join(o.DataPath, "history"), Name: p.name, MaxBytes: history.MaxFileBytes, Log: o.Logger,
		What: "the console's history", Unsynced: true,
	}
	old, err := lines.Read(&l)
	if err != nil {
		o.Logger.Warn("the console's history of before cannot be read: it begins anew", "dir", l.Dir, "error", err)
	}
	for _, text := range old {
		p.Replay(text, time.Now(), 0)
	}
	p.file.Store(lines.Start(l))
}

// add adds a look, and writes it to the disk, where the next process finds it.
func (p *past) add(k *history.Look) {
	file := p.file.Load()
	if !p.Add(k) || file == nil {
		return
	}
	if text := p.Newest(); text != nil {
		file.Append(text)
	}
}

// Remember adds a look to the history at each multiple of history.Interval, writes it to the disk, where the next
// process finds it, and fetches what the nodes whose keeper this node is remember. It ends with ctx.
func (s *Service) Remember(ctx context.Context) {
	for _, p := range s.pasts {
		if s.opts.DataPath == "" {
			break
		}
		p.open(&s.opts)
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), closePatience)
			defer cancel()
			p.file.Load().Close(ctx)
		}()
	}
	for {
		s.Look(time.Now())
		s.FetchRecords(ctx)
		now := time.Now()
		timer := time.NewTimer(now.Truncate(history.Interval).Add(history.Interval).Sub(now))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// KeptNodes returns the nodes whose history this node keeps: of those that take part, the next ones by name.
func (s *Service) KeptNodes() []*meta.Node {
	view, self := s.engine.View(), s.engine.Node().ID
	all := s.members()
	all = slices.DeleteFunc(all, func(n *meta.Node) bool { return absence(&view, n, n.ID == self) != "" })
	i := slices.IndexFunc(all, func(n *meta.Node) bool { return n.ID == self })
	if i < 0 {
		return nil
	}
	others := slices.Concat(all[i+1:], all[:i])
	return others[:min(keepers, len(others))]
}

// FetchRecords asks for what is new. Nodes that do not answer are asked again after the next look.
func (s *Service) FetchRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, n := range s.KeptNodes() {
		s.fetchFrom(ctx, n, false)
		s.fetchFrom(ctx, n, true)
	}
}

func (s *Service) fetchFrom(ctx context.Context, n *meta.Node, hours bool) {
	kept := s.past(hours).kept
	for more := true; more; {
		ask, err := json.Marshal(question{What: askRecords, After: kept.Last(n.Name), Hours: hours})
		if err != nil {
			panic("BUG: " + err.Error()) // it has only names and numbers
		}
		var r records
		text, err := s.engine.AskNode(ctx, n.ID, ask)
		if err != nil || json.Unmarshal(text, &r) != nil || len(r.Records) == 0 {
			return // it starts, ends, or is of an older version
		}
		last := kept.Last(n.Name)
		kept.Keep(n.Name, r.Records, time.Now())
		more = r.More && kept.Last(n.Name) > last
	}
}

// keptHere answers askKept.
func (s *Service) keptHere(q *question) map[string]history.Series {
	out := map[string]history.Series{}
	for _, name := range q.Names {
		if series, ok := s.past(q.Hours).kept.Series(name, q.Topic, q.Channel); ok {
			out[name] = series
		}
	}
	return out
}

// Histories is the answer of /history.
type Histories struct {
	Nodes []NodeHistory `json:"nodes"`
	// Total is that of all nodes; see history.Total.
	Total   history.Series `json:"total"`
	Missing []Missing      `json:"missing"`
}

// NodeHistory is what one node remembers, or what another one has kept of that.
type NodeHistory struct {
	Node   string `json:"node"`
	KeptBy string `json:"kept_by,omitempty"`
	history.Series
}

// newest returns the second of the last point of a series.
func newest(s *history.Series) int64 {
	if len(s.Known) == 0 {
		return 0
	}
	return s.Known[len(s.Known)-1][1]
}

func (s *Service) serveHistory(r *http.Request, q url.Values) (any, error) {
	topic, err := s.topicOf(q, false)
	if err != nil {
		return nil, err
	}
	if topic == "" && q.Has("channel") {
		return nil, web.Fail(400, "MISSING_ARG_TOPIC")
	}
	if q.Has("channel") && !names.ValidChannel(q.Get("channel")) {
		return nil, web.Fail(400, "INVALID_ARG_CHANNEL")
	}
	out := Histories{Nodes: []NodeHistory{}}
	ask := question{What: askHistory, Topic: topic, Channel: q.Get("channel"), Hours: q.Get("hours") == "true"}
	out.Missing = s.askAll(r.Context(), ask, func(node string, text []byte) error {
		h := NodeHistory{Node: node}
		if err := json.Unmarshal(text, &h.Series); err != nil {
			return err
		}
		if h.Step != s.past(ask.Hours).Step() {
			return errors.New("a node of this version remembers no hours")
		}
		out.Nodes = append(out.Nodes, h)
		return nil
	})
	s.addKept(r.Context(), &out, ask)
	return out, nil
}

// addKept adds what others have kept of the nodes that did not answer, and the total.
func (s *Service) addKept(ctx context.Context, out *Histories, ask question) {
	var parts []history.Part
	for i := range out.Nodes {
		parts = append(parts, history.Part{Series: out.Nodes[i].Series})
	}
	best := map[string]NodeHistory{}
	if ask.What = askKept; len(out.Missing) > 0 {
		for _, m := range out.Missing {
			ask.Names = append(ask.Names, m.Node)
		}
		s.askAll(ctx, ask, func(keeper string, text []byte) error {
			var kept map[string]history.Series
			err := json.Unmarshal(text, &kept)
			for name, series := range kept {
				if series.Step != s.past(ask.Hours).Step() {
					continue // an older version knows of no hours
				}
				if b, ok := best[name]; !ok || newest(&series) > newest(&b.Series) {
					best[name] = NodeHistory{Node: name, KeptBy: keeper, Series: series}
				}
			}
			return err
		})
	}
	view := s.engine.View()
	for _, m := range out.Missing {
		if h, ok := best[m.Node]; ok {
			out.Nodes = append(out.Nodes, h)
			parts = append(parts, history.Part{Series: h.Series, Dead: true})
		} else {
			parts = append(parts, history.Part{Unknown: s.lastHeard(&view, m.Node).Unix()})
		}
	}
	out.Total = history.Total(parts)
}

// lastHeard returns until when a node that does not answer may have done something: as far as is known, this process
// would have heard of it otherwise.
func (s *Service) lastHeard(v *health.View, name string) time.Time {
	for _, n := range s.members() {
		if n.Name != name {
			continue
		}
		if p, _ := v.Presence(n); p != health.Dead {
			return time.Now()
		}
		if gone, ok := v.Gone[n.ID]; ok {
			return time.Now().Add(-gone)
		}
		if heard, ok := v.Heard[n.ID]; ok {
			return time.Now().Add(-heard)
		}
	}
	return s.opts.Started
}
