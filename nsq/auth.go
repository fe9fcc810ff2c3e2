package nsq

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// AuthOptions say who may do what. The zero value lets everybody do everything. With a File or HTTPAddresses, clients prove
// themselves by a secret: in AUTH on an NSQ connection, as "Authorization: Bearer SECRET" over HTTP.
type AuthOptions struct {
	// File is a TOML file of tokens; whoever else may read it could not use them (it holds hashes), but could learn who
	// may do what: a file that others may read, write or execute is refused.
	//
	//	[[token]]
	//	name = "billing"                         # shown in /stats, never the token
	//	sha256 = "<64 hex digits>"               # printf %s "$TOKEN" | sha256sum
	//	[[token.grant]]
	//	permissions = ["publish", "subscribe"]   # and "admin"
	//	topics = ["orders", "orders.*"]          # names, with * and ?
	//	channels = ["billing*"]                  # for subscribe and admin; none: all
	File string

	// HTTPAddresses are servers of NSQ's auth protocol, HOST:PORT or a URL. A secret that File does not know is asked of one
	// of them, the next if that fails. What it permits holds for as long as it says.
	HTTPAddresses []string

	HTTPMethod     string        // GET or POST; GET
	RequestTimeout time.Duration // for one server: 5 s
}

func (o *AuthOptions) enabled() bool { return o.File != "" || len(o.HTTPAddresses) > 0 }

func (o *AuthOptions) setDefaults() error {
	orDefault(&o.HTTPMethod, http.MethodGet)
	orDefault(&o.RequestTimeout, 5*time.Second)
	if o.HTTPMethod != http.MethodGet && o.HTTPMethod != http.MethodPost {
		return fmt.Errorf("nsq: Auth.HTTPMethod is %q; it must be GET or POST", o.HTTPMethod)
	}
	for _, a := range o.HTTPAddresses {
		if _, err := backendURL(a); err != nil {
			return err
		}
	}
	return nil
}

// permission is a set of what a grant allows.
type permission uint8

const (
	mayPublish   permission = 1 << iota
	maySubscribe            // to channels, which creates them
	mayAdmin                // create, delete, empty and pause topics and channels; with all topics, the node and the cluster
)

var permissionNames = map[string]permission{"publish": mayPublish, "subscribe": maySubscribe, "admin": mayAdmin}

func parsePermissions(names []string) (permission, error) {
	var all permission
	for _, name := range names {
		p, ok := permissionNames[name]
		if !ok {
			return 0, fmt.Errorf("the permission %q is none of publish, subscribe and admin", name)
		}
		all |= p
	}
	return all, nil
}

// matcher is a pattern of names.
type matcher interface {
	MatchString(name string) bool
	matchesAll() bool // whatever the name; false if that cannot be told
}

// grant allows some things on some names.
type grant struct {
	permissions permission
	topics      []matcher
	channels    []matcher
}

func matches(patterns []matcher, name string) bool {
	for _, m := range patterns {
		if m.MatchString(name) {
			return true
		}
	}
	return false
}

// principal is whom a secret stands for. Immutable.
type principal struct {
	name, url string
	grants    []grant
	expires   time.Time  // zero: with file
	file      *tokenFile // that knew the secret; nil: a server did
}

// allows says whether one grant covers all of it. channel is empty where there is none.
func (p *principal) allows(what permission, topic, channel string) bool {
	for i := range p.grants {
		g := &p.grants[i]
		if g.permissions&what == 0 || !matches(g.topics, topic) {
			continue
		}
		// A server's channel patterns must match "" for publishing, as in nsqd; a file's are only about channels.
		if p.file != nil && channel == "" || matches(g.channels, channel) {
			return true
		}
	}
	return false
}

// allowsNode says whether the principal may administer everything.
func (p *principal) allowsNode() bool {
	for i := range p.grants {
		g := &p.grants[i]
		if g.permissions&mayAdmin != 0 && anyMatchesAll(g.topics) && anyMatchesAll(g.channels) {
			return true
		}
	}
	return false
}

func anyMatchesAll(patterns []matcher) bool {
	for _, m := range patterns {
		if m.matchesAll() {
			return true
		}
	}
	return false
}

// credential is what a principal is found by. It holds the secret: it is never logged.
type credential struct {
	secret     string
	remoteIP   string
	tls        bool
	commonName string // of the client's certificate
}

// errBadSecret: nobody knows the secret. Any other error says that nobody could be asked.
var errBadSecret = errors.New("the secret is unknown")

const (
	// maxSecretBytes bounds what is kept of a client.
	maxSecretBytes = 8 << 10

	// maxCachedCredentials bounds what is remembered of secrets over HTTP.
	maxCachedCredentials = 4096
)

// authority decides on secrets. Its methods may be called by any goroutine.
type authority struct {
	path    string
	tokens  atomic.Pointer[tokenFile] // nil: no file
	backend *backend                  // nil: no servers

	mu    sync.Mutex
	cache map[[sha256.Size]byte]*principal // of servers' answers, for requests over HTTP
}

// newAuthority reads the token file; nil: everybody may do everything.
func newAuthority(o *AuthOptions) (*authority, error) {
	if !o.enabled() {
		return nil, nil
	}
	a := &authority{path: o.File, cache: map[[sha256.Size]byte]*principal{}}
	if len(o.HTTPAddresses) > 0 {
		var err error
		if a.backend, err = newBackend(o); err != nil {
			return nil, err
		}
	}
	return a, a.reload()
}

func (a *authority) reload() error {
	if a.path == "" {
		return nil
	}
	f, err := readTokens(a.path)
	if err == nil {
		a.tokens.Store(f)
	}
	return err
}

// find asks the file and then the servers.
func (a *authority) find(ctx context.Context, c *credential) (*principal, error) {
	if len(c.secret) > maxSecretBytes {
		return nil, errBadSecret
	}
	if f := a.tokens.Load(); f != nil {
		if p := f.find(c.secret); p != nil {
			return p, nil
		}
	}
	if a.backend == nil {
		return nil, errBadSecret
	}
	return a.backend.ask(ctx, c)
}

// current says that what is known of the principal still holds.
func (a *authority) current(p *principal, now time.Time) bool {
	if p.file != nil {
		return p.file == a.tokens.Load()
	}
	return now.Before(p.expires)
}

// findCached is find for requests, which come one by one: a server's answer holds for the same secret from the same place.
func (a *authority) findCached(ctx context.Context, c *credential) (*principal, error) {
	if a.backend == nil {
		return a.find(ctx, c)
	}
	key := c.key()
	a.mu.Lock()
	p := a.cache[key]
	a.mu.Unlock()
	if p != nil && a.current(p, time.Now()) {
		return p, nil
	}
	p, err := a.find(ctx, c)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cache) >= maxCachedCredentials {
		a.thin()
	}
	a.cache[key] = p
	return p, nil
}

// thin makes room in the cache: what expired goes, and if that is nothing, one of the rest. mu is held.
func (a *authority) thin() {
	now := time.Now()
	for k, p := range a.cache {
		if !a.current(p, now) {
			delete(a.cache, k)
		}
	}
	for k := range a.cache {
		if len(a.cache) < maxCachedCredentials {
			return
		}
		delete(a.cache, k)
	}
}

// key stands for the credential without holding the secret.
func (c *credential) key() [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%d %s %t %d %s %s", len(c.remoteIP), c.remoteIP, c.tls, len(c.commonName), c.commonName, c.secret))
}
