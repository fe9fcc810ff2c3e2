package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sort"
	"strings"
	"time"
)

// askTimeout is how long a node may take to say what it knows: a stopped one never does.
const askTimeout = 2 * time.Second

// client keeps no connections: the nodes behind them come and go.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ErrNoCluster says that no node knows of a cluster: it is a single one.
var ErrNoCluster = errors.New("no node answers for a cluster")

// Status is what the harness reads of /cluster/status.
type Status struct {
	Level           int          `json:"level"` // 0: a version from before there were feature levels
	Revision        int64        `json:"revision"`
	Joined          bool         `json:"joined"`
	Controller      string       `json:"controller"`
	Nodes           []NodeStatus `json:"nodes"`
	Partitions      int          `json:"partitions"`
	UnderReplicated int          `json:"under_replicated"`
	Leaderless      int          `json:"leaderless"`
	Rebalance       Rebalance    `json:"rebalance"`
}

// Rebalance is what the status says about moves.
type Rebalance struct {
	State     string `json:"state"` // idle, running or paused
	Wanted    bool   `json:"wanted"`
	Moves     int    `json:"moves"`     // under way
	Remaining int    `json:"remaining"` // not begun
}

// Plan is what `penstock cluster rebalance --dry-run --json` prints.
type Plan struct {
	Steps []struct {
		Topic     string `json:"topic"`
		Partition uint32 `json:"partition"`
		From      string `json:"from"`
		To        string `json:"to"`
		Swap      bool   `json:"swap"`
	} `json:"steps"`
}

// NodeStatus is a member of the cluster.
type NodeStatus struct {
	Name     string `json:"name"`
	Live     bool   `json:"live"`
	Replicas int    `json:"replicas"`
}

// Topics is what the harness reads of /cluster/topics.
type Topics struct {
	Revision int64   `json:"revision"`
	Topics   []Topic `json:"topics"`
}

// Topic is one of them.
type Topic struct {
	Name       string      `json:"name"`
	ID         string      `json:"id"`
	Partitions []Partition `json:"partitions"`
}

// Partition is one partition's row.
type Partition struct {
	Partition uint32   `json:"partition"`
	State     string   `json:"state"` // "ok": led, and every replica in sync
	Leader    string   `json:"leader"`
	Epoch     uint64   `json:"epoch"`
	Version   uint64   `json:"version"` // raised by every change of the row
	Replicas  []string `json:"replicas"`
	ISR       []string `json:"isr"`
	Damaged   []string `json:"damaged"` // nodes that cannot read a part of their copy
}

// StatusError is an answer that was not 200.
type StatusError struct {
	Code int
	Body string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Code, e.Body) }

// Get asks one address.
func Get(ctx context.Context, address, path string, into any) error {
	return ask(ctx, http.MethodGet, address, path, nil, into)
}

// Post sends body as JSON; nil sends nothing.
func Post(ctx context.Context, address, path string, body, into any) error {
	return ask(ctx, http.MethodPost, address, path, body, into)
}

// ask logs in with the token in PENSTOCK_TOKEN, if there is one.
func ask(ctx context.Context, method, address, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, in)
	if err != nil {
		return err
	}
	if token := os.Getenv("PENSTOCK_TOKEN"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return &StatusError{resp.StatusCode, strings.TrimSpace(string(data))}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(data, into)
}

// newest asks every running node and keeps the answer of the newest revision: a node that is cut off knows the past.
func newest[T any](ctx context.Context, c *Cluster, path string, revision func(*T) int64) (*T, error) {
	var best *T
	var errs []error
	for _, n := range c.Nodes {
		if !n.Running() || n.Paused() {
			continue
		}
		var answer T
		if err := Get(ctx, n.HTTP, path, &answer); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.Name, err))
			continue
		}
		if best == nil || revision(&answer) > revision(best) {
			best = &answer
		}
	}
	if best != nil {
		return best, nil
	}
	for _, err := range errs {
		var status *StatusError
		if errors.As(err, &status) && status.Code == http.StatusNotFound {
			return nil, ErrNoCluster
		}
	}
	return nil, errors.Join(append(errs, errors.New("nobody knows the cluster's state"))...)
}

// Status is the newest that any node knows.
func (c *Cluster) Status(ctx context.Context) (*Status, error) {
	return newest(ctx, c, "/cluster/status", func(s *Status) int64 { return s.Revision })
}

// Topics is the newest that any node knows.
func (c *Cluster) Topics(ctx context.Context) (*Topics, error) {
	return newest(ctx, c, "/cluster/topics", func(t *Topics) int64 { return t.Revision })
}

// Partition is a partition's row.
func (c *Cluster) Partition(ctx context.Context, topic string, partition uint32) (*Partition, error) {
	all, err := c.Topics(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range all.Topics {
		if t.Name != topic {
			continue
		}
		for i := range t.Partitions {
			if t.Partitions[i].Partition == partition {
				return &t.Partitions[i], nil
			}
		}
	}
	return nil, fmt.Errorf("there is no partition %d of topic %s", partition, topic)
}

// Leader is the node that leads a partition.
func (c *Cluster) Leader(ctx context.Context, topic string, partition uint32) (*Node, error) {
	p, err := c.Partition(ctx, topic, partition)
	if err != nil {
		return nil, err
	}
	if n := c.Node(p.Leader); n != nil && p.State != "leaderless" {
		return n, nil
	}
	return nil, fmt.Errorf("partition %d of topic %s has no leader", partition, topic)
}

// Followers are the nodes that replicate a partition and do not lead it.
func (c *Cluster) Followers(ctx context.Context, topic string, partition uint32) ([]*Node, error) {
	p, err := c.Partition(ctx, topic, partition)
	if err != nil {
		return nil, err
	}
	var all []*Node
	for _, name := range p.Replicas {
		if n := c.Node(name); n != nil && name != p.Leader {
			all = append(all, n)
		}
	}
	return all, nil
}

// Controller is the node that decides.
func (c *Cluster) Controller(ctx context.Context) (*Node, error) {
	s, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	if n := c.Node(s.Controller); n != nil {
		return n, nil
	}
	return nil, errors.New("the cluster has no controller")
}

// Healthy waits until every node is a live member and every partition is led with all its replicas in sync. A single
// node is healthy.
func (c *Cluster) Healthy(ctx context.Context) error { return c.await(ctx, c.healthy) }

// Settled waits until the cluster is healthy and every partition is led by its first replica: no leadership moves back
// any more.
func (c *Cluster) Settled(ctx context.Context) error {
	return c.await(ctx, func(s *Status, t *Topics) error {
		if err := c.healthy(s, t); err != nil {
			return err
		}
		for _, topic := range t.Topics {
			for _, p := range topic.Partitions {
				if len(p.Replicas) > 0 && p.Leader != p.Replicas[0] {
					return fmt.Errorf("partition %d of topic %s is led by %s, not yet by %s",
						p.Partition, topic.Name, p.Leader, p.Replicas[0])
				}
			}
		}
		return nil
	})
}

func (c *Cluster) healthy(s *Status, t *Topics) error {
	live := 0
	for _, n := range s.Nodes {
		if n.Live {
			live++
		}
	}
	if live != len(c.Nodes) {
		return fmt.Errorf("%d of %d nodes are live", live, len(c.Nodes))
	}
	for _, topic := range t.Topics {
		for _, p := range topic.Partitions {
			if p.State != "ok" {
				return fmt.Errorf("partition %d of topic %s is %s: leader %s, replicas %v, in sync %v",
					p.Partition, topic.Name, p.State, p.Leader, p.Replicas, p.ISR)
			}
		}
	}
	return nil
}

// Led waits until every partition has a leader other than node; "" asks for any leader.
func (c *Cluster) Led(ctx context.Context, node string) error {
	return c.await(ctx, func(_ *Status, t *Topics) error {
		for _, topic := range t.Topics {
			for _, p := range topic.Partitions {
				if p.State == "leaderless" || p.Leader == node {
					return fmt.Errorf("partition %d of topic %s is %s, led by %s", p.Partition, topic.Name, p.State, p.Leader)
				}
			}
		}
		return nil
	})
}

func (c *Cluster) await(ctx context.Context, holds func(*Status, *Topics) error) error {
	for {
		var t *Topics
		s, err := c.Status(ctx)
		if errors.Is(err, ErrNoCluster) {
			return nil
		}
		if err == nil {
			t, err = c.Topics(ctx)
		}
		if err == nil {
			err = holds(s, t)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w while waiting: %w", ctx.Err(), err)
		case <-time.After(5 * readyPoll):
		}
	}
}

// Drain asks a node to give away what it leads, or ends that.
func (c *Cluster) Drain(ctx context.Context, node *Node, on bool) error {
	return Post(ctx, node.HTTP, "/cluster/drain", map[string]any{"node": node.Name, "on": on}, nil)
}

// CreateTopic makes a topic by the HTTP API of a running node. One that exists is no error.
func (c *Cluster) CreateTopic(ctx context.Context, topic string) error {
	return c.create(ctx, "/topic/create?topic="+url.QueryEscape(topic))
}

// CreateChannel makes a channel the same way.
func (c *Cluster) CreateChannel(ctx context.Context, topic, channel string) error {
	return c.create(ctx, "/channel/create?topic="+url.QueryEscape(topic)+"&channel="+url.QueryEscape(channel))
}

// create asks until it is done: a node that just joined may not know all the others yet.
func (c *Cluster) create(ctx context.Context, path string) error {
	for {
		err := errors.New("no node runs")
		for _, n := range c.Nodes {
			if !n.Running() || n.Paused() {
				continue
			}
			if err = Post(ctx, n.HTTP, path, nil, nil); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", path, err)
		case <-time.After(5 * readyPoll):
		}
	}
}

func (c *Cluster) addresses(of func(*Node) string) []string {
	all := make([]string, 0, len(c.Nodes))
	for _, n := range c.Nodes {
		all = append(all, of(n))
	}
	return slices.Clip(all)
}

// NSQ are the addresses of the nodes' NSQ protocol.
func (c *Cluster) NSQ() []string { return c.addresses(func(n *Node) string { return n.NSQ }) }

// Lookups are the addresses of the nodes' nsqlookupd APIs.
func (c *Cluster) Lookups() []string { return c.addresses(func(n *Node) string { return n.Lookup }) }

func sortNodes(nodes []*Node) {
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Name < nodes[j].Name })
}
