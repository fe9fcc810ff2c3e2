package data

import (
	"context"
	wire "encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"penstock/cmd/engine/internal/client"
	"penstock/internal/migrate"
)

// importRequestTime bounds one request. A publish waits at most a few seconds for room and for the disk.
const importRequestTime = 30 * time.Second

// nodeTarget imports into a running node over nsqd's HTTP API; the node could also be an nsqd.
type nodeTarget struct{ client *client.Client }

// Exclusive returns false: others publish and consume while the import runs, and HTTP returns no ids.
func (n *nodeTarget) Exclusive() bool { return false }

func (n *nodeTarget) do(ctx context.Context, method, path string, query url.Values, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, importRequestTime)
	defer cancel()
	status, data, err := n.client.Send(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the node refused %s: %d %s %s",
			path, status, http.StatusText(status), strings.Join(strings.Fields(string(data)), " "))
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
