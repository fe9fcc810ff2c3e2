package main

import (
	"bytes"
	"context"
	wire "encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"penstock/migrate"
)

const (
	// importRequestTime bounds one request. A publish waits at most a few seconds for room and for the disk.
	importRequestTime = 30 * time.Second
	maxStatsBytes     = 64 << 20
	maxTokenBytes     = 4096
)

// nodeTarget imports into a running node over nsqd's HTTP API; the node could also be an nsqd.
type nodeTarget struct {
	base   string
	token  string // "": no token is sent
	client *http.Client
}

func newNodeTarget(address, token string) *nodeTarget {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return &nodeTarget{
		base: strings.TrimSuffix(address, "/"), token: token, client: &http.Client{Timeout: importRequestTime},
	}
}

// readToken reads the token for a node with AUTH from a file. It returns "" if no file is named.
func readToken(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	token := strings.TrimSpace(string(data))
	if err == nil && (token == "" || len(data) > maxTokenBytes || strings.ContainsAny(token, "\r\n")) {
		err = fmt.Errorf("%s is not one line with a token of at most %d bytes", name, maxTokenBytes)
	}
	return token, err
}

// Exclusive returns false: others publish and consume while the import runs, and HTTP returns no ids.
func (n *nodeTarget) Exclusive() bool { return false }

func (n *nodeTarget) do(ctx context.Context, method, path string, query url.Values, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, n.base+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if n.token != "" {
		req.Header.Set("Authorization", "Bearer "+n.token)
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the node does not answer: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxStatsBytes))
	if err != nil {
		return nil, fmt.Errorf("the node's answer to %s broke off: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the node refused %s: %s %s",
			path, resp.Status, strings.Join(strings.Fields(string(data)), " "))
	}
	return data, nil
}

func (n *nodeTarget) Topic(ctx context.Context, name string) (migrate.TargetTopic, error) {
	data, err := n.do(ctx, http.MethodGet, "/stats", url.Values{
		"format": {"json"}, "topic": {name}, "include_clients": {"false"}, "include_mem": {"false"},
	}, nil)
	if err != nil {
		return migrate.TargetTopic{}, err
	}
	var stats struct {
		Topics []struct {
			Name     string `json:"topic_name"`
			Depth    int64  `json:"depth"`
			Paused   bool   `json:"paused"`
			Channels []struct {
				Name     string `json:"channel_name"`
				Depth    int64  `json:"depth"`
				InFlight int64  `json:"in_flight_count"`
				Deferred int64  `json:"deferred_count"`
				Paused   bool   `json:"paused"`
			} `json:"channels"`
		} `json:"topics"`
	}
	if err := json.Unmarshal(data, &stats); err != nil {
		return migrate.TargetTopic{}, fmt.Errorf("the node's /stats is not nsqd's JSON: %w", err)
	}
	for _, t := range stats.Topics {
		if t.Name != name {
			continue
		}
		out := migrate.TargetTopic{
			Exists: true, Paused: t.Paused, Waiting: t.Depth, Channels: map[string]migrate.TargetChannel{},
		}
		for _, c := range t.Channels {
			out.Channels[c.Name] = migrate.TargetChannel{Waiting: c.Depth + c.InFlight + c.Deferred, Paused: c.Paused}
		}
		return out, nil
	}
	return migrate.TargetTopic{}, nil
}

func (n *nodeTarget) post(ctx context.Context, path string, query url.Values) error {
	_, err := n.do(ctx, http.MethodPost, path, query, nil)
	return err
}

func (n *nodeTarget) CreateTopic(ctx context.Context, name string) error {
	return n.post(ctx, "/topic/create", url.Values{"topic": {name}})
}

func (n *nodeTarget) CreateChannel(ctx context.Context, topic, channel string) error {
	return n.post(ctx, "/channel/create", url.Values{"topic": {topic}, "channel": {channel}})
}

func (n *nodeTarget) PauseTopic(ctx context.Context, name string) error {
	return n.post(ctx, "/topic/pause", url.Values{"topic": {name}})
}

func (n *nodeTarget) PauseChannel(ctx context.Context, topic, channel string) error {
	return n.post(ctx, "/channel/pause", url.Values{"topic": {topic}, "channel": {channel}})
}

// Publish sends one MPUB, or a PUB if there is only one message, which may be too large for an MPUB.
func (n *nodeTarget) Publish(ctx context.Context, topic string, bodies [][]byte) (uint64, error) {
	if len(bodies) == 1 {
		_, err := n.do(ctx, http.MethodPost, "/pub", url.Values{"topic": {topic}}, bodies[0])
		return 0, err
	}
	body := wire.BigEndian.AppendUint32(nil, uint32(len(bodies)))
	for _, b := range bodies {
		body = wire.BigEndian.AppendUint32(body, uint32(len(b)))
		body = append(body, b...)
	}
	_, err := n.do(ctx, http.MethodPost, "/mpub", url.Values{"topic": {topic}, "binary": {"true"}}, body)
	return 0, err
}

func (n *nodeTarget) LastID(context.Context, string, string) (uint64, error) {
	panic("BUG: LastID of a target that is not exclusive")
}

func (n *nodeTarget) Confirm(context.Context, string, string, uint64, func(uint64) bool) error {
	panic("BUG: Confirm of a target that is not exclusive")
}
