package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxSecretBytes is the longest secret; a longer one is unknown. It bounds what is kept of a client.
	MaxSecretBytes = 8 << 10

	// maxCachedSecrets bounds how many secrets of HTTP requests have a remembered principal.
	maxCachedSecrets = 4096
)

// ErrUnknownSecret says that neither the file nor a server knows the secret. Any other error of Find says that no
// server could be asked.
var ErrUnknownSecret = errors.New("the secret is unknown")

// Credential is a secret with what auth servers want to know of its client. It is never logged.
type Credential struct {
	Secret     string
	RemoteIP   string
	TLS        bool
	CommonName string // of the client's certificate
}

// key stands for the credential in the cache, which so holds no secret.
func (c *Credential) key() [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(
		nil, "%d %s %t %d %s %s", len(c.RemoteIP), c.RemoteIP, c.TLS, len(c.CommonName), c.CommonName, c.Secret,
	))
}

// Authority finds principals. Any goroutine may call its methods.
//
// There are three sources, asked in this order: the token file, which is read at Open and at Reload and compared in
// memory; for HTTP requests, the answers of auth servers that have not expired; the auth servers. Nothing outlives the
// process.
type Authority struct {
	path    string
	tokens  atomic.Pointer[tokenFile] // what Reload read last; nil: no file
	servers *servers                  // nil: none

	mu    sync.Mutex                       // guards cache, and is held for no longer than a look at it
	cache map[[sha256.Size]byte]*Principal // servers' answers, for HTTP requests; len(cache) ≤ maxCachedSecrets
}

// Open reads the token file. It returns nil where Options name neither a file nor servers: every client may do
// everything. SetDefaults must have been called.
func Open(o *Options) (*Authority, error) {
	if !o.Enabled() {
		return nil, nil
	}
	a := &Authority{path: o.File, cache: map[[sha256.Size]byte]*Principal{}}
	if len(o.HTTPAddresses) > 0 {
		var err error
		if a.servers, err = newServers(o); err != nil {
			return nil, err
		}
	}
	return a, a.Reload()
}

// Reload reads the token file again. After an error what was read before stays in force.
func (a *Authority) Reload() error {
	if a.path == "" {
		return nil
	}
	f, err := readTokens(a.path)
	if err == nil {
		a.tokens.Store(f)
	}
	return err
}

// Find asks the token file and then the servers. It may wait for as long as ctx and Options.RequestTimeout allow.
func (a *Authority) Find(ctx context.Context, c *Credential) (*Principal, error) {
	if len(c.Secret) > MaxSecretBytes {
		return nil, ErrUnknownSecret
	}
	if p := a.FindToken(c.Secret); p != nil {
		return p, nil
	}
	if a.servers == nil {
		return nil, ErrUnknownSecret
	}
	return a.servers.ask(ctx, c)
}

// FindToken asks only the token file, as it was read last; nil: it does not know the secret.
func (a *Authority) FindToken(secret string) *Principal {
	f := a.tokens.Load()
	if f == nil {
		return nil
	}
	return f.find(secret)
}

// Current says whether what is known of the principal still holds: its file was not read again, or its server's answer
// has not expired.
func (a *Authority) Current(p *Principal, now time.Time) bool {
	if p.file != nil {
		return p.file == a.tokens.Load()
	}
	return now.Before(p.expires)
}

// FindCached is Find for HTTP requests, each of which brings its secret: a server's answer is kept, until it expires,
// for the same secret from the same address.
func (a *Authority) FindCached(ctx context.Context, c *Credential) (*Principal, error) {
	if a.servers == nil {
		return a.Find(ctx, c)
	}
	key := c.key()
	a.mu.Lock()
	p := a.cache[key]
	a.mu.Unlock()
	if p != nil && a.Current(p, time.Now()) {
		return p, nil
	}
	p, err := a.Find(ctx, c)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remember(key, p)
	return p, nil
}

// remember puts a principal into the cache. mu is held.
func (a *Authority) remember(key [sha256.Size]byte, p *Principal) {
	if len(a.cache) >= maxCachedSecrets {
		a.evict()
	}
	a.cache[key] = p
}

// evict makes room in the cache: what is not current goes, and if that is nothing, any entry. mu is held.
func (a *Authority) evict() {
	now := time.Now()
	for k, p := range a.cache {
		if !a.Current(p, now) {
			delete(a.cache, k)
		}
	}
	for k := range a.cache {
		if len(a.cache) < maxCachedSecrets {
			return
		}
		delete(a.cache, k)
	}
}
