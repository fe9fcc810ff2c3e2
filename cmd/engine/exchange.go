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

// maxAnswerBytes bounds what a node can make this process hold: a million partitions are about 250 MB.
const maxAnswerBytes = 256 << 20

// exchange is one request to a node's HTTP API.
type exchange struct {
	address string
	token   string // empty: none is sent
	flag    string // that says the address, for the errors
	method  string
	path    string // with its query
}

// do sends body as JSON, or nothing if it is nil, and returns what the node answers, whatever its status.
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
		var of *url.Error // the URL is in the sentence already
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
