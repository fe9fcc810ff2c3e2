package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/jsonbody"
	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/replicate"
)

const (
	// MaxBodyBytes bounds the body of a request; the largest one is a few hundred bytes.
	MaxBodyBytes = 4 << 10
	// StoreTimeout is the longest wait for the metadata store.
	StoreTimeout = 10 * time.Second
	// FaultsTimeout is the longest wait for other nodes to report their faults.
	FaultsTimeout = 2 * time.Second
)

// Self describes the node that serves the handler. Name is its node_id.
type Self struct {
	Name string
	// Verify compares a part of the replicas of a partition, from at on; its answer is sent as JSON. nil: this node
	// cannot compare replicas.
	Verify func(ctx context.Context, topic string, partition uint32, at int64) (any, error)
	// Faults asks a live node, this one or another, for its faults since its start. It is called for several nodes at
	// once. nil: no node is asked.
	Faults func(ctx context.Context, node replicate.NodeID) ([]Fault, error)
	// Copy asks a live node, this one or another, about its copy of a partition. It is called for several nodes at once.
	// nil: no node is asked.
	Copy func(ctx context.Context, id meta.PartitionID, node replicate.NodeID) (*Copy, error)
	// Shortened says whether this node's own copy of a partition may lack what it acknowledged. nil: none is.
	Shortened func(id meta.PartitionID) bool
	// Create creates a topic, and returns when this node has it; 0 partitions or replicas: the default number. The
	// handler has found that there is no topic of that name. nil: this node creates no topics.
	Create func(ctx context.Context, name string, partitions, replicas int) error
	// MayExpand returns why the topic must not have this many partitions. nil: this node knows no reason.
	MayExpand func(ctx context.Context, topic string, partitions int) error
	// Forget takes what a node that is gone was to the metadata store itself out of it. nil: nodes are nothing to it.
	Forget func(ctx context.Context, name string) error
	// Health returns what the node knows of itself and of the cluster, besides the store's rows. nil: it believes the
	// rows.
	Health func() *health.Facts
}

// Handler serves /cluster/; mount it there with its prefix, behind what decides who may send requests: Handler itself
// refuses nobody. It may be mounted before the node has joined the cluster:
// until then its answers say so.
func Handler(store meta.Store, self Self) http.Handler {
	h := &handler{store: store, self: self}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, refuse(http.StatusNotFound, "there is no %s here; see /cluster/status and /cluster/topics", r.URL.Path))
	})
	for path, route := range h.routes() {
		mux.Handle(path, route)
	}
	return mux
}

// routes returns what serves each path. The program that mounts Handler decides which
// clients may send requests to each of them.
func (h *handler) routes() map[string]http.Handler {
	return map[string]http.Handler{
		"/cluster/status":          only(http.MethodGet, h.status),
		"/cluster/topics":          only(http.MethodGet, h.topics),
		"/cluster/drain":           post(h, h.drain),
		"/cluster/move":            post(h, h.move),
		"/cluster/force-leader":    answered(h, h.forceLeader),
		"/cluster/transfer-leader": answered(h, h.transferLeader),
		"/cluster/remove-node":     post(h, h.removeNode),
		"/cluster/expand":          post(h, h.expand),
		"/cluster/create-topic":    post(h, h.createTopic),
		"/cluster/set-replicas":    post(h, h.setReplicas),
		"/cluster/rebalance":       h.rebalance(),
		"/cluster/upgrade":         post(h, h.upgrade),
		"/cluster/verify":          only(http.MethodPost, h.verify),
	}
}

// Paths returns all paths that Handler serves, sorted.
func Paths() []string { return slices.Sorted(maps.Keys(new(handler).routes())) }

type handler struct {
	store meta.Store
	self  Self
}

// Done is the answer to a change that the store accepted: one sentence about its effect. Leader is the node that is to
// lead, in the answer of /cluster/transfer-leader. Copies are those of the partition, in the answer of
// /cluster/force-leader, as their nodes described them before anything was changed.
type Done struct {
	Message string `json:"message"`
	Leader  string `json:"leader,omitempty"`
	Copies  []Copy `json:"copies,omitempty"`
}

func (h *handler) status(r *http.Request) (any, error) {
	if err := r.ParseForm(); err != nil {
		return nil, refuse(http.StatusBadRequest, "the query is not valid: %v", err)
	}
	s := h.store.Snapshot()
	if s == nil {
		return &Status{Node: h.self.Name, Nodes: []Node{}, Reasons: []string{}, Health: "the node has not joined"}, nil
	}
	st := statusOf(s, h.facts(s))
	if r.Form.Has("faults") { // only on request: a node that hangs answers late, or not at all
		h.askFaults(r.Context(), st)
	}
	return st, nil
}

// facts returns what this node knows. The cluster is looked at anew, with the rows that the caller shows.
func (h *handler) facts(s *meta.Snapshot) *health.Facts {
	if h.self.Health != nil {
		if f := h.self.Health(); f.Cluster != nil {
			f.Cluster = health.Look(s, f.Cluster.View)
			return f
		}
	}
	v := health.View{}
	for id, n := range s.Nodes {
		if n.Name == h.self.Name {
			v.Self, v.Leased = id, n.Live
		}
	}
	return &health.Facts{Node: h.self.Name, Cluster: health.Look(s, v)}
}

// askFaults asks this node and all live ones for their faults, at the same time.
func (h *handler) askFaults(ctx context.Context, st *Status) {
	if h.self.Faults == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, FaultsTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i := range st.Nodes {
		n := &st.Nodes[i]
		if !n.Live && n.Name != h.self.Name {
			continue
		}
		wg.Go(func() {
			var err error
			if n.Faults, err = h.self.Faults(ctx, n.ID); err != nil {
				n.NoFaults = err.Error()
			}
			for _, f := range n.Faults {
				if f.Name == "shortened_copies" {
					n.Shortened = int(f.Count)
				}
			}
		})
	}
	wg.Wait()
}

func (h *handler) topics(r *http.Request) (any, error) {
	if err := r.ParseForm(); err != nil {
		return nil, refuse(http.StatusBadRequest, "the query is not valid: %v", err)
	}
	s, err := h.snapshot()
	if err != nil {
		return nil, err
	}
	var all []*meta.Topic
	if r.Form.Has("topic") {
		t, err := topicNamed(s, r.Form.Get("topic"))
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	} else {
		all = slices.Collect(maps.Values(s.Topics))
	}
	out := topicsOf(s, &h.facts(s).Cluster.View, all)
	h.noteShortened(out)
	return out, nil
}

// noteShortened adds which of this node's own copies are shortened. No row says it, and no other node is asked: that
// would be a question for each copy.
func (h *handler) noteShortened(all *Topics) {
	if h.self.Shortened == nil {
		return
	}
	for _, t := range all.Topics {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if h.self.Shortened(meta.PartitionID{Topic: t.ID, Partition: p.Partition}) {
				p.Shortened = append(p.Shortened, h.self.Name)
			}
		}
	}
}

// verify is not a command: it changes nothing but damaged data, and clients call it repeatedly.
func (h *handler) verify(r *http.Request) (any, error) {
	b := new(Verify)
	if err := decode(r, b); err != nil {
		return nil, err
	}
	s, err := h.snapshot()
	if err != nil {
		return nil, err
	}
	if _, err := partitionNamed(s, b.Topic, b.Partition); err != nil {
		return nil, err
	}
	if h.self.Verify == nil {
		return nil, refuse(http.StatusNotFound, "node %s cannot compare replicas", h.self.Name)
	}
	ctx, cancel := context.WithTimeout(r.Context(), StoreTimeout)
	defer cancel()
	v, err := h.self.Verify(ctx, b.Topic, *b.Partition, b.At)
	if err != nil {
		return nil,
			refuse(http.StatusServiceUnavailable, "the replicas could not be compared: %v; nothing was changed, try again", err)
	}
	return v, nil
}

func (h *handler) snapshot() (*meta.Snapshot, error) {
	if s := h.store.Snapshot(); s != nil {
		return s, nil
	}
	return nil, refuse(http.StatusServiceUnavailable, "node %s has not joined the cluster yet: ask another node or try "+
		"again", h.self.Name)
}

// refusal is an error that knows its HTTP status.
type refusal struct {
	status  int
	message string
}

func (e *refusal) Error() string { return e.message }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// only serves a single method. GET includes HEAD.
func only(method string, serve func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			writeError(w, refuse(http.StatusMethodNotAllowed, "%s takes %s, not %s", r.URL.Path, method, r.Method))
			return
		}
		v, err := serve(r)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, v)
	})
}

// command carries out one change. It uses the snapshot to refuse with better messages than the store has, and then
// calls the store.
type command[T any] func(ctx context.Context, s *meta.Snapshot, body *T) (string, error)

func post[T any](h *handler, do command[T]) http.Handler {
	return answered(h, func(ctx context.Context, s *meta.Snapshot, body *T) (*Done, error) {
		message, err := do(ctx, s, body)
		return &Done{Message: message}, err
	})
}

// answered serves a command that says more than one sentence.
func answered[T any](h *handler, do func(ctx context.Context, s *meta.Snapshot, body *T) (*Done, error)) http.Handler {
	return only(http.MethodPost, func(r *http.Request) (any, error) {
		body := new(T)
		if err := decode(r, body); err != nil {
			return nil, err
		}
		s, err := h.snapshot()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), StoreTimeout)
		defer cancel()
		done, err := do(ctx, s, body)
		if r := new(refusal); errors.As(err, &r) && r.status == http.StatusNotFound {
			// What this node does not know may have been made a moment ago.
			if h.store.CatchUp(ctx) != nil {
				return nil, refuse(http.StatusServiceUnavailable, "%s, as far as node %s knows, and the metadata store does not "+
					"say whether it is new: nothing was changed; try again", r.message, h.self.Name)
			}
			done, err = do(ctx, h.store.Snapshot(), body)
		}
		if err != nil {
			return nil, err
		}
		return done, nil
	})
}

// decode reads exactly one JSON object. It refuses unknown fields: a misspelled field must not fall back to a default.
func decode(r *http.Request, body any) error {
	data, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, MaxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", MaxBodyBytes)
	case err != nil:
		return refuse(http.StatusBadRequest, "the body ended early: %v", err)
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(body); err != nil {
		return refuse(http.StatusBadRequest, "the body is not the JSON object that %s takes: %s",
			r.URL.Path, jsonbody.Explain(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refuse(http.StatusBadRequest, "the body goes on after the JSON object")
	}
	return nil
}

// statuses maps the store's errors to HTTP statuses.
var statuses = map[error]int{
	meta.ErrNotFound:    http.StatusNotFound,
	meta.ErrExists:      http.StatusConflict,
	meta.ErrConflict:    http.StatusConflict,
	meta.ErrTooFewNodes: http.StatusConflict,
	meta.ErrReplicas:    http.StatusConflict,
	meta.ErrSettings:    http.StatusBadRequest,

	errs.ErrTooManyTopics: http.StatusConflict,
	errs.ErrFewInodes:     http.StatusInsufficientStorage,

	errs.ErrTooManyPartitions: http.StatusInsufficientStorage,

	errs.ErrClosed:      http.StatusServiceUnavailable,
	meta.ErrUnsafe:      http.StatusConflict,
	meta.ErrLevel:       http.StatusConflict,
	meta.ErrUnavailable: http.StatusServiceUnavailable,
}

func writeError(w http.ResponseWriter, err error) {
	var r *refusal
	status, message := http.StatusInternalServerError, err.Error()
	for _, prefix := range []string{"engine: ", "cluster: ", "meta: "} {
		message = strings.TrimPrefix(message, prefix)
	}
	switch {
	case errors.As(err, &r):
		status = r.status
	case errors.Is(err, kv.ErrUnavailable): // the error says what became of the change
		status = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		status = http.StatusGatewayTimeout
		message = fmt.Sprintf("the metadata store did not answer in %v: the change may have been made; look at the cluster "+
			"before trying again", StoreTimeout)
	default:
		for known, code := range statuses {
			if errors.Is(err, known) {
				status = code
			}
		}
	}
	writeJSON(w, status, &Done{Message: message})
}

// writeJSON sends a reply. An error on the client's connection is ignored, because nobody could be told of it.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
