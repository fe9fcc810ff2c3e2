package nsq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	backendDialTimeout  = 2 * time.Second
	maxBackendRequests  = 64 // at once to one server; more wait
	maxBackendIdle      = 4
	maxBackendBytes     = 1 << 20
	maxBackendTTL       = 365 * 24 * time.Hour
	backendIdleTimeout  = 90 * time.Second
	backendHeaderAccept = "application/vnd.nsq; version=1.0"
)

// backend asks servers of NSQ's auth protocol.
type backend struct {
	urls    []*url.URL
	method  string
	timeout time.Duration
	client  *http.Client
}

// backendURL is where an address answers: /auth of a HOST:PORT, a URL as it is.
func backendURL(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("nsq: %q is neither the HOST:PORT nor the URL of an auth server", address)
		}
		return &url.URL{Scheme: "http", Host: address, Path: "/auth"}, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("nsq: an auth server's URL is not one of http or https") // it may hold a password
	}
	return u, nil
}

func newBackend(o *AuthOptions) (*backend, error) {
	b := &backend{method: o.HTTPMethod, timeout: o.RequestTimeout}
	for _, a := range o.HTTPAddresses {
		u, err := backendURL(a)
		if err != nil {
			return nil, err
		}
		b.urls = append(b.urls, u)
	}
	b.client = &http.Client{
		Timeout: o.RequestTimeout,
		// A redirect would carry the secret to where nobody configured it.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{ // no proxy either
			DialContext:         (&net.Dialer{Timeout: min(backendDialTimeout, o.RequestTimeout)}).DialContext,
			MaxConnsPerHost:     maxBackendRequests,
			MaxIdleConnsPerHost: maxBackendIdle,
			IdleConnTimeout:     backendIdleTimeout,
			TLSHandshakeTimeout: o.RequestTimeout,
		},
	}
	return b, nil
}

// ask tries the servers from a random one on until one answers. Errors never hold the secret: those of net/http
// show the URL, and in a GET the secret is part of it.
func (b *backend) ask(ctx context.Context, c *credential) (*principal, error) {
	form := url.Values{
		"remote_ip": {c.remoteIP}, "tls": {strconv.FormatBool(c.tls)}, "secret": {c.secret}, "common_name": {c.commonName},
	}
	var errs []error
	start := rand.IntN(len(b.urls))
	for i := range b.urls {
		u := b.urls[(start+i)%len(b.urls)]
		p, err := b.askOne(ctx, u, form)
		if err == nil {
			return p, nil
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		errs = append(errs, fmt.Errorf("%s: %w", u.Host, err))
	}
	return nil, fmt.Errorf("no auth server gave an answer: %w", errors.Join(errs...))
}

func (b *backend) askOne(ctx context.Context, to *url.URL, form url.Values) (*principal, error) {
	u, body := *to, ""
	if b.method == http.MethodPost {
		body = form.Encode()
	} else {
		if u.RawQuery != "" {
			u.RawQuery += "&"
		}
		u.RawQuery += form.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, b.method, u.String(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	req.Header.Set("Accept", backendHeaderAccept)
	asked := time.Now()
	reply, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(io.LimitReader(reply.Body, maxBackendBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxBackendBytes:
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxBackendBytes)
	case reply.StatusCode == http.StatusForbidden || reply.StatusCode == http.StatusUnauthorized:
		return nil, errBadSecret
	case reply.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the answer has status %d", reply.StatusCode)
	}
	return parseBackend(data, asked)
}

// pattern is a server's: it matches anywhere in a name unless it says otherwise, as in nsqd.
type pattern struct{ *regexp.Regexp }

func (p pattern) matchesAll() bool {
	switch p.String() {
	case "", ".*", "^.*", ".*$", "^.*$":
		return true
	}
	return false
}

func patterns(exprs []string) ([]matcher, error) {
	if len(exprs) > maxGrants {
		return nil, fmt.Errorf("it has more than %d patterns in one authorization", maxGrants)
	}
	out := make([]matcher, 0, len(exprs))
	for _, e := range exprs {
		re, err := regexp.Compile(e)
		if err != nil {
			return nil, fmt.Errorf("it has a pattern that is no regular expression: %w", err)
		}
		out = append(out, pattern{re})
	}
	return out, nil
}

// parseBackend checks an answer as nsqd does; "admin" is a permission beyond nsqd's.
func parseBackend(data []byte, asked time.Time) (*principal, error) {
	var in struct {
		TTL            int64  `json:"ttl"`
		Identity       string `json:"identity"`
		IdentityURL    string `json:"identity_url"`
		Authorizations []struct {
			Topic       string   `json:"topic"`
			Channels    []string `json:"channels"`
			Permissions []string `json:"permissions"`
		} `json:"authorizations"`
	}
	if json.Unmarshal(data, &in) != nil {
		return nil, errors.New("the answer is not the JSON of an auth server")
	}
	if in.TTL <= 0 {
		return nil, fmt.Errorf("the answer's ttl is %d; it must be more than 0", in.TTL)
	}
	if len(in.Authorizations) > maxGrants {
		return nil, fmt.Errorf("the answer has more than %d authorizations", maxGrants)
	}
	ttl := maxBackendTTL
	if in.TTL < int64(maxBackendTTL/time.Second) {
		ttl = time.Duration(in.TTL) * time.Second
	}
	p := &principal{
		name: in.Identity[:min(len(in.Identity), maxClientTextBytes)], url: in.IdentityURL[:min(len(in.IdentityURL), maxClientTextBytes)],
		expires: asked.Add(ttl),
	}
	for _, a := range in.Authorizations {
		var g grant
		var err error
		if g.permissions, err = parsePermissions(a.Permissions); err != nil {
			return nil, err
		}
		if g.topics, err = patterns([]string{a.Topic}); err != nil {
			return nil, err
		}
		if g.channels, err = patterns(a.Channels); err != nil {
			return nil, err
		}
		p.grants = append(p.grants, g)
	}
	return p, nil
}
