// Package client is the one client of a node's HTTP API in cmd/engine. All commands that talk to a running node use it.
//
// Flags are the flags about the node, TLS and the token. Client sends requests. The node's refusals become sentences:
// nsqd's codes are made for programs.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/cluster/admin"
)

const (
	// maxAnswerBytes bounds the size of a node's answer; the answer about a million partitions has about 250 MB.
	maxAnswerBytes = 256 << 20
	// nodeTimeout is longer than a node's own timeout for an operation at all leaders, so that the node can report the
	// outcome.
	nodeTimeout = 90 * time.Second
	// clusterTimeout, for /cluster/, leaves the node enough time to report that its store does not answer.
	clusterTimeout = admin.StoreTimeout + 5*time.Second
)

// ErrNoSuchRequest says that the node does not serve the path, for example because its version is older.
var ErrNoSuchRequest = errors.New(
	"it does not know this request: it is not a Penstock node, an older one, or in no cluster")

// ErrNoAnswer is returned if no connection to the node can be made, it ends without an answer, or the time for the
// answer is over.
var ErrNoAnswer = errors.New("does not answer")

// Client sends requests to one node. The zero value with Flags filled is ready. A Client may be used by several
// goroutines at once, and must not be copied.
type Client struct {
	Flags

	ready sync.Once
	base  *url.URL
	token string
	http  *http.Client
	err   error

	announced bool // the node is one that another has announced: nobody has named its address
}

// init reads the files that the flags name, once.
func (c *Client) init() error {
	c.ready.Do(func() {
		if c.base, c.err = parseAddress(c.Address); c.err != nil {
			return
		}
		if c.token, c.err = c.Flags.Token(); c.err != nil {
			return
		}
		config, err := c.Flags.TLS()
		if c.err = err; err != nil {
			return
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = config
		c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the token must not follow a redirection
		}}
	})
	return c.err
}

// At returns a client of another node of the same cluster, with the same certificates, token and scheme. The two
// addresses are the HOST:PORTs that the node announces for http and https.
func (c *Client) At(plain, secure string) (*Client, error) {
	if err := c.init(); err != nil {
		return nil, err
	}
	other := &Client{
		base: &url.URL{Scheme: c.base.Scheme, Host: plain}, token: c.token, http: c.http, Flags: c.Flags, announced: true,
	}
	if c.base.Scheme == "https" {
		other.base.Host = secure
	}
	if other.base.Host == "" {
		return nil, fmt.Errorf("it announces no address for %s", c.base.Scheme)
	}
	other.Address = other.base.String()
	other.ready.Do(func() {})
	return other, nil
}

// URL returns the address of a path of the node.
func (c *Client) URL(path string) (string, error) {
	if err := c.init(); err != nil {
		return "", err
	}
	return c.base.JoinPath(path).String(), nil
}

// Here says whether the node is on this machine: its address is one of this machine's. A port that is forwarded to
// another machine, or to a container, looks the same.
func (c *Client) Here() bool {
	if c.init() != nil {
		return false
	}
	ips, err := net.LookupIP(c.base.Hostname())
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	for _, ip := range ips {
		if ip.IsLoopback() || err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(ip)
		}) {
			return true
		}
	}
	return false
}

// Get asks for path and decodes the answer.
func (c *Client) Get(ctx context.Context, path string, q url.Values, answer any) error {
	return c.do(ctx, http.MethodGet, path, q, nil, answer)
}

// Post sends body as JSON, or no body if it is nil. answer may be nil.
func (c *Client) Post(ctx context.Context, path string, q url.Values, body, answer any) error {
	return c.do(ctx, http.MethodPost, path, q, body, answer)
}

func (c *Client) do(ctx context.Context, method, path string, q url.Values, body, answer any) error {
	timeout := nodeTimeout
	if strings.HasPrefix(path, "/cluster/") {
		timeout = clusterTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	status, data, err := c.Exchange(ctx, method, path, q, body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return c.refusal(status, data, path, q)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("%s answers something else than a node does: %w", c.Address, err)
	}
	return nil
}

// Exchange sends one request, with body as JSON unless it is nil, and returns the node's answer with any status.
func (c *Client) Exchange(ctx context.Context, method, path string, q url.Values, body any) (int, []byte, error) {
	var send io.Reader
	kind := ""
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		send, kind = bytes.NewReader(data), "application/json"
	}
	return c.exchange(ctx, method, path, q, send, kind, maxAnswerBytes)
}

// Send sends a request with these bytes as its body, and returns the node's answer with any status.
func (c *Client) Send(ctx context.Context, method, path string, q url.Values, body []byte) (int, []byte, error) {
	return c.exchange(ctx, method, path, q, bytes.NewReader(body), "", maxAnswerBytes)
}

// PostBytes posts these bytes, and returns an error if the node does not answer 200.
func (c *Client) PostBytes(ctx context.Context, path string, q url.Values, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	status, data, err := c.Send(ctx, http.MethodPost, path, q, body)
	if err == nil && status != http.StatusOK {
		err = c.refusal(status, data, path, q)
	}
	return err
}

// Fetch asks for path, and returns the answer with any status: at most max bytes of it.
func (c *Client) Fetch(ctx context.Context, path string, q url.Values, max int64) (int, []byte, error) {
	return c.exchange(ctx, http.MethodGet, path, q, nil, "", max)
}

func (c *Client) exchange(
	ctx context.Context, method, path string, q url.Values, send io.Reader, kind string, max int64,
) (int, []byte, error) {
	if err := c.init(); err != nil {
		return 0, nil, err
	}
	u := *c.base
	u.Path, u.RawQuery = path, q.Encode()
	if u.Scheme == "http" {
		if err := c.CheckPlaintext(c.token, u.Hostname(), "https:// in --http-address"); err != nil {
			return 0, nil, err
		}
	}
	var connected atomic.Bool // by the transport's goroutines, which may go on after Do
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req, err := http.NewRequestWithContext(traced, method, u.String(), send)
	if err != nil {
		return 0, nil, usage("--http-address %s cannot be asked: %w", c.Address, err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, c.failure(ctx, err, connected.Load() && method != http.MethodGet)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, max))
	if err != nil {
		return 0, nil, fmt.Errorf("the answer of the node at %s broke off: what was asked for may have been done: %w",
			c.Address, err)
	}
	if detail := resp.Header.Get("Penstock-Detail"); detail != "" && resp.StatusCode != http.StatusOK {
		var said map[string]any // the body is nsqd's, to the letter: refusal finds the sentence beside its code
		if json.Unmarshal(data, &said) == nil {
			said["detail"] = detail
			data, _ = json.Marshal(said) // it was JSON
		}
	}
	return resp.StatusCode, data, nil
}

// failure describes why there is no answer. unknown says that the node may have got a request that changes something.
func (c *Client) failure(ctx context.Context, err error, unknown bool) error {
	var of *url.Error // the sentences below name the address already
	if errors.As(err, &of) {
		err = of.Err
	}
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		return usage("the certificate of the node at %s is of an authority that is not trusted here: name the authority's "+
			"certificate with --tls-ca; nothing was sent", c.Address)
	case errors.As(err, &name):
		return usage("the certificate of the node at %s is for another name (%w): use a name in it as --http-address; "+
			"nothing was sent", c.Address, err)
	case strings.Contains(err.Error(), "protocol version not supported"):
		return usage("the node at %s speaks only TLS 1.2: raise it there, or say --tls-min-version 1.2; nothing was sent",
			c.Address)
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return usage("%s does not speak TLS: say http:// for its HTTP address, or name its HTTPS address", c.Address)
	case strings.Contains(err.Error(), "malformed HTTP"):
		return usage("%s does not speak HTTP: name the HTTP address of a node in --http-address, which has port 4151 by "+
			"default; nothing was done", c.Address)
	}
	advice := "say another one with --http-address"
	if unknown {
		advice = "what was asked for may have been done, or may be done later: look before you ask again, here or at " +
			"another node (--http-address)"
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled) && unknown:
		return fmt.Errorf("interrupted before the node at %s answered: what was asked for may have been done, or may be "+
			"done later: %w", c.Address, ctx.Err())
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("interrupted before the node at %s answered: %w", c.Address, ctx.Err())
	}
	if c.announced && !unknown {
		return fmt.Errorf("the node at %s %w: %w", c.Address, ErrNoAnswer, err)
	}
	return fmt.Errorf("the node at %s %w: %s: %w", c.Address, ErrNoAnswer, advice, err)
}

// refusal turns an answer other than 200 into an error sentence.
func (c *Client) refusal(status int, data []byte, path string, q url.Values) error {
	var said struct {
		Message   string `json:"message"`
		Detail    string `json:"detail"`
		HTTPSPort int    `json:"https_port"`
	}
	if json.Unmarshal(data, &said) != nil || said.Message == "" {
		if strings.Contains(string(data), "HTTP request to an HTTPS server") {
			return usage("%s speaks TLS: say https:// in --http-address", c.Address)
		}
		return fmt.Errorf("%s answers with status %d: it is no Penstock node's HTTP address", c.Address, status)
	}
	text := strings.TrimPrefix(said.Message, "engine: ")
	switch {
	case status == http.StatusNotFound && text == "NOT_FOUND":
		if strings.HasPrefix(path, "/cluster/") {
			return &noSuchRequest{fmt.Sprintf("the node at %s is not part of a cluster", c.Address)}
		}
		return &noSuchRequest{fmt.Sprintf("%v (node at %s)", ErrNoSuchRequest, c.Address)}
	case text == "TLS_REQUIRED":
		text = "it requires TLS: say https:// in --http-address"
		if said.HTTPSPort != 0 {
			text += fmt.Sprintf("; its port for that is %d", said.HTTPSPort)
		}
	case text == "UNAUTHORIZED":
		text = "the token does not allow " + path
		if topic := q.Get("topic"); topic != "" {
			text += " of topic " + topic
		}
		text += ": docs/reference/http.md names the permission of each route"
	default:
		text = sentence(text, status, q)
	}
	if said.Detail != "" {
		text += ": " + said.Detail
	}
	err := fmt.Errorf("%s (node at %s)", text, c.Address)
	if status == http.StatusBadRequest {
		return usageError{err}
	}
	return err
}

// noSuchRequest is ErrNoSuchRequest in other words.
type noSuchRequest struct{ text string }

func (e *noSuchRequest) Error() string        { return e.text }
func (e *noSuchRequest) Is(target error) bool { return target == ErrNoSuchRequest }

// sentence translates a code of nsqd. Our own routes answer with sentences, which stay as they are.
func sentence(code string, status int, q url.Values) string {
	switch code {
	case "TOPIC_NOT_FOUND":
		return "there is no topic " + q.Get("topic")
	case "CHANNEL_NOT_FOUND":
		return fmt.Sprintf("topic %s has no channel %s", q.Get("topic"), q.Get("channel"))
	case "INVALID_TOPIC", "INVALID_ARG_TOPIC":
		return fmt.Sprintf("%q is not the name of a topic", q.Get("topic"))
	case "INVALID_ARG_CHANNEL":
		return fmt.Sprintf("%q is not the name of a channel", q.Get("channel"))
	case "INVALID_PARTITIONS":
		return "that is not a possible number of partitions: a topic has 1 to 65,536"
	case "INVALID_REPLICAS":
		return "that is not a possible number of replicas"
	case "AUTH_FIRST":
		return "it asks for a token: name a file with --token-file, or set " + EnvToken
	case "AUTH_FAILED":
		return "it does not accept the token"
	case "EXITING":
		return "it is shutting down; try another node"
	case "":
		return http.StatusText(status)
	}
	return code
}
