package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// MaxSecretBytes is the length of the longest secret that is looked up; a longer one counts as unknown. It bounds
	// the memory that a connection's secret takes.
	MaxSecretBytes = 8 << 10

	// maxCachedSecrets bounds the number of entries in Authority.cache.
	maxCachedSecrets = 65536
)

// ErrUnknownSecret is returned when neither the token file nor a server knows the secret. Any other error of Find means
// that no server gave a usable answer.
var ErrUnknownSecret = errors.New("the secret is unknown")

// Credential is a secret, with the facts about its client that auth servers are told. It is never logged.
type Credential struct {
	Secret     string
	RemoteIP   string
	TLS        bool
	CommonName string // of the client's certificate
}

// key is a hash of the whole credential. It is the key of the cache, so that the cache holds no secrets.
func (c *Credential) key() [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(
		nil, "%d %s %t %d %s %s", len(c.RemoteIP), c.RemoteIP, c.TLS, len(c.CommonName), c.CommonName, c.Secret,
	))
}

// Authority finds the principal for a secret. Any goroutine may call its methods.
//
// It consults up to three sources, in this order: the token file, which Open and Reload read into memory; for HTTP
// requests, the cached answers of auth servers that have not expired; and the auth servers themselves. Nothing is
// persistent: after a restart the servers are asked again.
type Authority struct {
	path     string
	readable bool                      // Options.ReadableFiles
	tokens   atomic.Pointer[tokenFile] // the file as Reload last read it; nil: there is no file
	servers  atomic.Pointer[servers]   // nil: no servers are configured, and none are added

	replacing sync.Mutex // held by who replaces servers

	cache *lru.Cache[[sha256.Size]byte, *Principal] // servers' answers, expired ones included

	hold    atomic.Int64 // ns: Options.HoldTime
	silence silence
}

// Open reads the token file. It returns nil if Options name neither a file nor servers; then every client may do
// everything. SetDefaults must have been called before.
func Open(o *Options) (*Authority, error) {
	if !o.Enabled() {
		return nil, nil
	}
	cache, err := lru.New[[sha256.Size]byte, *Principal](maxCachedSecrets)
	if err != nil {
		panic("BUG: " + err.Error()) // it refuses only a size below 1
	}
	a := &Authority{path: o.File, readable: o.ReadableFiles, cache: cache}
	a.hold.Store(int64(max(o.HoldTime, 0)))
	a.silence.asks, a.silence.heldBy = make(map[[sha256.Size]byte]*asking), make(map[[sha256.Size]byte]time.Time)
	if a.silence.log = o.Logger; a.silence.log == nil {
		a.silence.log = slog.Default()
	}
	if len(o.HTTPAddresses) > 0 {
		s, err := newServers(o)
		if err != nil {
			return nil, err
		}
		a.servers.Store(s)
	}
	return a, a.Reload()
}

// Reload reads the token file again. If it returns an error, the previous contents remain in force.
func (a *Authority) Reload() error {
	if a.path == "" {
		return nil
	}
	f, err := readTokens(a.path, a.readable)
	if err == nil {
		a.tokens.Store(f)
	}
	return err
}

// SetServers replaces the auth servers, of which there were some at Open. What the old ones have answered goes on until
// it expires. After an error they stay.
func (a *Authority) SetServers(addresses []string) error {
	a.replacing.Lock()
	defer a.replacing.Unlock()
	old := a.servers.Load()
	if old == nil || len(addresses) == 0 {
		return errors.New("nsq: without the address of a server nobody could log in")
	}
	o := old.o
	o.HTTPAddresses = addresses
	return a.replace(&o)
}

// Change takes over HTTPMethod, RequestTimeout and HoldTime from o, for the questions from now on. nil has none.
func (a *Authority) Change(o Options) error {
	if a == nil {
		return nil
	}
	a.hold.Store(int64(max(o.HoldTime, 0)))
	a.replacing.Lock()
	defer a.replacing.Unlock()
	old := a.servers.Load()
	if old == nil || old.o.HTTPMethod == o.HTTPMethod && old.o.RequestTimeout == o.RequestTimeout {
		return nil
	}
	o.HTTPAddresses = old.o.HTTPAddresses
	return a.replace(&o)
}

// replace replaces the auth servers, of which there are some. replacing is held.
func (a *Authority) replace(o *Options) error {
	s, err := newServers(o)
	if err != nil {
		return err
	}
	old := a.servers.Swap(s)
	old.client.CloseIdleConnections()
	return nil
}

// Find looks the secret up in the token file, and then asks the servers. It may block for as long as ctx and
// Options.RequestTimeout allow. If the servers are silent, the last answer holds for Options.HoldTime.
func (a *Authority) Find(ctx context.Context, c *Credential) (*Principal, error) {
	if len(c.Secret) > MaxSecretBytes {
		return nil, ErrUnknownSecret
	}
	if p := a.FindToken(c.Secret); p != nil {
		return p, nil
	}
	if a.servers.Load() == nil {
		return nil, ErrUnknownSecret
	}
	return a.find(ctx, c)
}

// FindToken looks the secret up in the token file only, as it was last read. It returns nil if the file does not know
// the secret.
func (a *Authority) FindToken(secret string) *Principal {
	f := a.tokens.Load()
	if f == nil {
		return nil
	}
	return f.find(secret)
}

// Current reports whether the principal is still valid: the token file it came from has not been read again since, or
// the server's answer has not expired.
func (a *Authority) Current(p *Principal, now time.Time) bool {
	if p.file != nil {
		return p.file == a.tokens.Load()
	}
	return now.Before(p.expires)
}

// FindCached is Find for HTTP requests, each of which carries its secret again. It keeps a server's answer until the
// answer expires, and reuses it for requests with the same credential: the same secret, address and certificate.
func (a *Authority) FindCached(ctx context.Context, c *Credential) (*Principal, error) {
	if a.servers.Load() == nil {
		return a.Find(ctx, c)
	}
	key := c.key()
	if p, ok := a.cache.Get(key); ok && a.Current(p, time.Now()) {
		return p, nil
	}
	return a.Find(ctx, c)
}

// CommonName returns the common name of a client's certificate, or "" if there is none.
func CommonName(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	return state.PeerCertificates[0].Subject.CommonName
}

// Certified returns the name in a client's certificate if an authority has signed it, or "".
func Certified(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 {
		return ""
	}
	return "certificate " + CommonName(state)
}

// CredentialOf is a secret of a client with this address, HOST:PORT; state is nil without TLS.
func CredentialOf(secret, remote string, state *tls.ConnectionState) *Credential {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	return &Credential{Secret: secret, RemoteIP: host, TLS: state != nil, CommonName: CommonName(state)}
}
