package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"penstock/internal/node/health"
)

// Health returns the node's verdict about itself and its cluster. A node that does not answer is unhealthy.
func (c *Client) Health(ctx context.Context) (*health.Verdict, error) {
	const path = "/health"
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	status, data, err := c.Exchange(ctx, http.MethodGet, path, nil, nil)
	v := new(health.Verdict)
	switch {
	case errors.Is(err, ErrNoAnswer):
		why := err.Error()
		return &health.Verdict{
			Health: "unhealthy: " + why, Reasons: []string{why}, Checks: []health.Check{}, StoreAgeMs: -1,
		}, nil
	case err != nil:
		return nil, err
	case status != http.StatusOK && status != http.StatusServiceUnavailable:
		return nil, c.refusal(status, data, path, nil)
	case json.Unmarshal(data, v) != nil || v.Health == "":
		return nil, fmt.Errorf("%s answers something else than a node does", c.Address)
	}
	return v, nil
}
