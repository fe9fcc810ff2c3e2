package auth

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

	"penstock/internal/clip"
)

const (
	// MaxAnswerBytes bounds the size of an auth server's answer.
	MaxAnswerBytes = 1 << 20

	// maxIdentityBytes bounds the identity and the identity URL in an answer; longer ones are truncated.
	maxIdentityBytes = 1024

	maxAnswerTTL     = 365 * 24 * time.Hour
	maxRequestCount  = 64 // concurrent connections to one server; further requests wait for one
	maxIdleConnCount = 4  // to one server
	idleConnTimeout  = 90 * time.Second
	maxDialTimeout   = 2 * time.Second
	acceptHeader     = "application/vnd.nsq; version=1.0"
)

// servers is a client for servers of NSQ's auth protocol. It is immutable except for the idle connections of its HTTP
// client, and any goroutine may use it.
type servers struct {
	o      Options
	urls   []*url.URL
	client *http.Client
}

// serverURL returns the URL of an auth server: http://HOST:PORT/auth for a HOST:PORT, and a URL unchanged.
func serverURL(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		if _, _, err := net.SplitHostPort(address); err != nil {
			if strings.ContainsAny(address, "@?") {
				address = "an address with a password" // an error is logged
			}
			return nil, fmt.Errorf("nsq: %q is neither the HOST:PORT nor the URL of an auth server", address)
		}
		return &url.URL{Scheme: "http", Host: address, Path: "/auth"}, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("nsq: an auth server's URL is not one of http or https") // the URL may hold a password
	}
	return u, nil
}

func newServers(o *Options) (*servers, error) {
	s := &servers{o: *o}
	for _, a := range o.HTTPAddresses {
		u, err := serverURL(a)
		if err != nil {
			return nil, err
		}
		s.urls = append(s.urls, u)
	}
	s.client = &http.Client{
		Timeout: o.RequestTimeout,
		// A redirect would carry the secret to a server that nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{ // no proxy, for the same reason
			DialContext:         (&net.Dialer{Timeout: min(maxDialTimeout, o.RequestTimeout)}).DialContext,
			MaxConnsPerHost:     maxRequestCount,
			MaxIdleConnsPerHost: maxIdleConnCount,
			IdleConnTimeout:     idleConnTimeout,
			TLSHandshakeTimeout: o.RequestTimeout,
		},
	}
	return s, nil
}

// ask asks the servers one after the other, starting with a random one, until one answers. Its errors never contain the
// secret: net/http's errors quote the URL, which contains the secret in a GET, so ask strips them down to their cause.
func (s *servers) ask(ctx context.Context, c *Credential) (*Principal, error) {
	form := url.Values{
		"remote_ip": {c.RemoteIP}, "tls": {strconv.FormatBool(c.TLS)}, "secret": {c.Secret}, "common_name": {c.CommonName},
	}
	var errs []error
	start := rand.IntN(len(s.urls))
	for i := range s.urls {
		u := s.urls[(start+i)%len(s.urls)]
		p, err := s.askOne(ctx, u, form)
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

// silent marks an error as that of a server that said nothing. It keeps only the cause of net/http's errors.
func silent(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%w: %w", errSilent, err)
}

func (s *servers) askOne(ctx context.Context, to *url.URL, form url.Values) (*Principal, error) {
	u, body := *to, ""
	if s.o.HTTPMethod == http.MethodPost {
		body = form.Encode()
	} else {
		if u.RawQuery != "" {
			u.RawQuery += "&"
		}
		u.RawQuery += form.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, s.o.HTTPMethod, u.String(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	req.Header.Set("Accept", acceptHeader)
	asked := time.Now()
	reply, err := s.client.Do(req)
	if err != nil {
		return nil, silent(err)
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(io.LimitReader(reply.Body, MaxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, silent(err)
	case len(data) > MaxAnswerBytes:
		return nil, fmt.Errorf("the answer is larger than %d bytes", MaxAnswerBytes)
	case reply.StatusCode == http.StatusForbidden || reply.StatusCode == http.StatusUnauthorized:
		return nil, ErrUnknownSecret
	case reply.StatusCode >= 500:
		return nil, silent(fmt.Errorf("the answer has status %d", reply.StatusCode))
	case reply.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the answer has status %d", reply.StatusCode)
	}
	return parseAnswer(data, asked)
}

// pattern is a regular expression from an auth server. As in nsqd, it matches anywhere in a name unless it is anchored.
type pattern struct{ *regexp.Regexp }

func (p pattern) matchesAll() bool {
	switch p.String() {
	case "", ".*", "^.*", ".*$", "^.*$":
		return true
	}
	return false
}

// patterns compiles the topic pattern, or the channel patterns, of one authorization.
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

// parseAnswer checks an answer as nsqd does. Unlike nsqd, it also accepts the permission "admin". asked is when the
// request was sent: the answer's ttl counts from then.
func parseAnswer(data []byte, asked time.Time) (*Principal, error) {
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
	ttl := maxAnswerTTL
	if in.TTL < int64(maxAnswerTTL/time.Second) {
		ttl = time.Duration(in.TTL) * time.Second
	}
	p := &Principal{
		name:    clip.Text(in.Identity, maxIdentityBytes),
		url:     clip.Text(in.IdentityURL, maxIdentityBytes),
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
