// Package auth decides what clients of NSQ's TCP protocol and of the HTTP interface may do.
//
// A client proves who it is with a secret. An [Authority] maps the secret to a [Principal], either from a file of
// tokens (tokens.go) or by asking a server that speaks NSQ's auth protocol (servers.go). The principal holds grants,
// which say what may be done with which topics and channels. Packages nsq, native and api ask the principal before they
// carry out a command or serve a request.
//
// Secrets never appear in a log, an error or a file; the token file holds only hashes.
package auth

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Options configure who may do what. The zero value lets every client do everything. With a File or HTTPAddresses set,
// clients must prove who they are with a secret: in AUTH on an NSQ connection, as "Authorization: Bearer SECRET" over
// HTTP.
type Options struct {
	// File is a TOML file of tokens. A user of the machine who can read it learns who may do what, but not the tokens,
	// because the file holds only hashes. Even so, a file that others may read, write or execute is refused, see
	// ReadableFiles.
	//
	//	[[token]]
	//	name = "billing"                         # shown in /stats, never the token
	//	sha256 = "<64 hex digits>"               # printf %s "$TOKEN" | sha256sum
	//	[[token.grant]]
	//	permissions = ["publish", "subscribe"]   # and "view", "admin"
	//	topics = ["orders", "orders.*"]          # names, with * and ?
	//	channels = ["billing*"]                  # for subscribe, view and admin; none: all. What concerns a topic as
	//	                                         # a whole (see WholeTopic) needs a grant for all
	File string

	// ReadableFiles accepts a File that others may read, but not change: one that is mounted so that chmod cannot work.
	ReadableFiles bool

	// HTTPAddresses are servers of NSQ's auth protocol, each a HOST:PORT or a URL. When File does not know a secret,
	// one of these servers is asked, and the next one if that fails. A server's answer is valid for as long as the
	// answer says.
	HTTPAddresses []string

	HTTPMethod     string        // GET or POST; the default is GET
	RequestTimeout time.Duration // per server; the default is 5 s

	// HoldTime is how long a server's answer stays in force beyond its own time while the servers cannot be reached, do
	// not answer in time, or answer 5xx. The default is 5 min; NoHold is none.
	HoldTime time.Duration

	Logger *slog.Logger // is told when the servers fall silent and when they answer again; default: slog's
}

// NoHold as Options.HoldTime ends a grant when it expires, also if no server answers.
const NoHold = -1

// Enabled reports whether clients must prove who they are.
func (o *Options) Enabled() bool { return o.File != "" || len(o.HTTPAddresses) > 0 }

// SetDefaults fills in the fields that are not set, and returns an error if one that is set is invalid.
func (o *Options) SetDefaults() error {
	if o.HTTPMethod == "" {
		o.HTTPMethod = http.MethodGet
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 5 * time.Second
	}
	if o.HoldTime == 0 {
		o.HoldTime = 5 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.HTTPMethod != http.MethodGet && o.HTTPMethod != http.MethodPost {
		return fmt.Errorf("nsq: Auth.HTTPMethod is %q; it must be GET or POST", o.HTTPMethod)
	}
	for _, a := range o.HTTPAddresses {
		if _, err := serverURL(a); err != nil {
			return err
		}
	}
	return nil
}

// Permission is a set of actions, as bits.
type Permission uint8

// The actions that a grant can allow.
const (
	Publish   Permission = 1 << iota
	Subscribe            // to a channel; subscribing creates the channel

	// Admin allows creating, deleting, emptying and pausing topics and channels, their settings, and peeking at their
	// messages. An Admin grant on all topics and all channels also covers the administration of the node and the cluster.
	Admin

	// View allows looking at settings, and at what is in flight or deferred, but not at bodies of messages: who watches a
	// system need not read what its users send. A View grant on all topics and all channels also covers looking at the
	// node's settings and at the cluster. The permission admin includes it.
	View
)

var permissionNames = map[string]Permission{
	"publish": Publish, "subscribe": Subscribe, "admin": Admin | View, "view": View,
}

func parsePermissions(names []string) (Permission, error) {
	var all Permission
	for _, name := range names {
		p, ok := permissionNames[name]
		if !ok {
			return 0, fmt.Errorf("the permission %q is none of publish, subscribe, view and admin", name)
		}
		all |= p
	}
	return all, nil
}

// matcher is a pattern for names: a glob in the token file, or a regexp from an auth server.
type matcher interface {
	MatchString(name string) bool
	matchesAll() bool // the pattern matches every name; false if that cannot be determined
}

// grant allows some actions on some topics and channels. Every grant of a principal has at least one topic pattern.
type grant struct {
	permissions Permission
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

func anyMatchesAll(patterns []matcher) bool {
	for _, m := range patterns {
		if m.matchesAll() {
			return true
		}
	}
	return false
}

// Principal is the identity that a secret proves, together with its grants as known at one moment. It is immutable:
// when the token file is read again or a server is asked again, a new Principal is made. Authority.Current reports
// whether an older one is still valid.
type Principal struct {
	name, url string
	grants    []grant
	expires   time.Time  // when the servers have to be asked again; zero if file is set
	granted   time.Time  // when the server's own answer expires, which is before expires if the grant is held
	file      *tokenFile // the token file that knew the secret; nil: a server knew it
}

// Name is the token's name, or the identity in a server's answer.
func (p *Principal) Name() string { return p.name }

// URL is the identity's URL in a server's answer, or "" if there is none.
func (p *Principal) URL() string { return p.url }

// GrantCount is the number of grants.
func (p *Principal) GrantCount() int { return len(p.grants) }

// FromFile reports whether the principal comes from the token file rather than from a server.
func (p *Principal) FromFile() bool { return p.file != nil }
