package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// nodeTimeout is longer than a node's own timeout for an operation at all leaders, so that the node can report the
// outcome.
const nodeTimeout = 90 * time.Second

// errNoSuchRequest is returned for a path that the node does not serve.
var errNoSuchRequest = errors.New(
	"it does not know this request: it is not a Penstock node, an older one, or in no cluster")

// nodeClient is a client of the HTTP API of one node, whether that node is alone or in a cluster.
type nodeClient struct {
	address string
	token   string // empty: no token is sent
}

// of returns a query that names a topic and, unless it is empty, a channel.
func of(topic, channel string) url.Values {
	q := url.Values{"topic": {topic}}
	if channel != "" {
		q.Set("channel", channel)
	}
	return q
}

func (c *nodeClient) get(ctx context.Context, path string, q url.Values, answer any) error {
	return c.do(ctx, http.MethodGet, path, q, nil, answer)
}

// post sends body as JSON, or no body if it is nil. answer may be nil.
func (c *nodeClient) post(ctx context.Context, path string, q url.Values, body, answer any) error {
	return c.do(ctx, http.MethodPost, path, q, body, answer)
}

func (c *nodeClient) do(ctx context.Context, method, path string, q url.Values, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	x := exchange{
		address: c.address, token: c.token, flag: "--http-address", method: method, path: path + "?" + q.Encode(),
	}
	status, data, err := x.do(ctx, body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return c.refusal(status, data, q)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("%s answers something else than a node does: %w", c.address, err)
	}
	return nil
}

// refusal turns an answer other than 200 into an error sentence: the node answers with nsqd's codes, which are made for
// programs.
func (c *nodeClient) refusal(status int, data []byte, q url.Values) error {
	var said struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(data, &said) != nil || said.Message == "" {
		return fmt.Errorf("%s answers with status %d: it is no Penstock node's HTTP address", c.address, status)
	}
	text := strings.TrimPrefix(said.Message, "engine: ")
	switch text {
	case "NOT_FOUND":
		return fmt.Errorf("%w (node at %s)", errNoSuchRequest, c.address)
	case "TOPIC_NOT_FOUND":
		text = "there is no topic " + q.Get("topic")
	case "CHANNEL_NOT_FOUND":
		text = fmt.Sprintf("topic %s has no channel %s", q.Get("topic"), q.Get("channel"))
	case "INVALID_TOPIC", "INVALID_ARG_TOPIC":
		text = fmt.Sprintf("%q is not the name of a topic", q.Get("topic"))
	case "INVALID_ARG_CHANNEL":
		text = fmt.Sprintf("%q is not the name of a channel", q.Get("channel"))
	case "INVALID_PARTITIONS":
		text = "that is not a possible number of partitions: a topic has 1 to 65,536"
	case "AUTH_FIRST":
		text = "it asks for a token: set " + envToken
	case "AUTH_FAILED":
		text = "it does not accept the token in " + envToken
	case "UNAUTHORIZED":
		text = "the token in " + envToken + " does not allow this"
	case "EXITING":
		text = "it is shutting down; try another node"
	case "":
		text = http.StatusText(status)
	}
	err := errors.New(text + " (node at " + c.address + ")")
	if status == http.StatusBadRequest {
		return &exitError{exitUsage, err}
	}
	return err
}
