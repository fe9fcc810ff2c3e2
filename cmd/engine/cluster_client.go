package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"penstock/cluster/admin"
)

const (
	// clusterTimeout leaves the node time to say that its store does not answer.
	clusterTimeout = admin.StoreTimeout + 5*time.Second
	// maxAnswerBytes bounds what a node can make this process hold: a million partitions are about 250 MB.
	maxAnswerBytes = 256 << 20
)

// clusterClient speaks to /cluster/ of one node.
type clusterClient struct {
	address string
	token   string // empty: none is sent
}

func (c *clusterClient) get(ctx context.Context, path string, answer any) error {
	return c.do(ctx, http.MethodGet, path, nil, answer)
}

// do sends body, or nothing if it is nil, and decodes the answer. A refusal becomes an error with the node's sentence.
func (c *clusterClient) do(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	var send io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		send = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.address+path, send)
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("--http %s is not a HOST:PORT: %w", c.address, err)}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the node at %s does not answer: say another one with --http: %w", c.address, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("the answer of the node at %s broke off: what was asked for may have been done: %w", c.address, err)
	}
	return decodeAnswer(c.address, resp.StatusCode, data, answer)
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
	case status == http.StatusNotFound && refused.Message == "NOT_FOUND": // nsqd's words: nothing is mounted at /cluster/
		return fmt.Errorf("the node at %s is not part of a cluster", address)
	}
	return fmt.Errorf("%s (node at %s)", refused.Message, address)
}
