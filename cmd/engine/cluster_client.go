package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"penstock/cluster/admin"
)

// clusterTimeout leaves the node enough time to report that its store does not answer.
const clusterTimeout = admin.StoreTimeout + 5*time.Second

// clusterClient is a client of /cluster/ at one node.
type clusterClient struct {
	address string
	token   string // empty: no token is sent
}

func (c *clusterClient) get(ctx context.Context, path string, answer any) error {
	return c.do(ctx, http.MethodGet, path, nil, answer)
}

// do sends body, or no body if it is nil, and decodes the answer. A refusal becomes an error with the sentence that the
// node answered.
func (c *clusterClient) do(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	x := exchange{address: c.address, token: c.token, flag: "--http", method: method, path: path}
	status, data, err := x.do(ctx, body)
	if err != nil {
		return err
	}
	return decodeAnswer(c.address, status, data, answer)
}

func decodeAnswer(address string, status int, data []byte, answer any) error {
	if status == http.StatusOK {
		if err := json.Unmarshal(data, answer); err != nil {
			return fmt.Errorf("%s answers something else than a cluster's node does: %w", address, err)
		}
		return nil
	}
	refused := new(admin.Done)
	switch err := json.Unmarshal(data, refused); {
	case err != nil || refused.Message == "":
		return fmt.Errorf("%s answers with status %d: it is no Penstock node's HTTP address", address, status)
	case status == http.StatusNotFound && refused.Message == "NOT_FOUND": // nsqd's code: nothing is served at /cluster/
		return fmt.Errorf("the node at %s is not part of a cluster", address)
	}
	return fmt.Errorf("%s (node at %s)", refused.Message, address)
}
