package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxAnswerBytes bounds the size of a node's answer; the answer about a million partitions has about 250 MB.
const maxAnswerBytes = 256 << 20

// exchange is one request to a node's HTTP API.
type exchange struct {
	address string
	token   string // empty: no token is sent
	flag    string // the flag that sets address, for error messages
	method  string
	path    string // including the query
}

// do sends body as JSON, or no body if it is nil. It returns the node's answer with any status.
func (x *exchange) do(ctx context.Context, body any) (status int, data []byte, err error) {
	var send io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		send = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, x.method, "http://"+x.address+x.path, send)
	if err != nil {
		return 0, nil, &exitError{exitUsage, fmt.Errorf("%s %s is not a HOST:PORT: %w", x.flag, x.address, err)}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if x.token != "" {
		req.Header.Set("Authorization", "Bearer "+x.token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		var of *url.Error // the sentence below names the address already
		if errors.As(err, &of) {
			err = of.Err
		}
		return 0, nil, fmt.Errorf("the node at %s does not answer: say another one with %s: %w", x.address, x.flag, err)
	}
	defer resp.Body.Close()
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return 0, nil, fmt.Errorf("the answer of the node at %s broke off: what was asked for may have been done: %w",
			x.address, err)
	}
	return resp.StatusCode, data, nil
}
