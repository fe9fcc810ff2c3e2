// Package auth decides what clients of NSQ's TCP protocol and of the HTTP interface may do.
//
// A client proves itself by a secret. An [Authority] finds the [Principal] whom the secret stands for, in a file of
// tokens (tokens.go) or by asking a server of NSQ's auth protocol (servers.go). The principal holds grants: what may be
// done with which topics and channels. Package nsq asks it before it carries out a command or serves a request.
//
// A secret is in no log, in no error and in no file: the token file holds hashes.
package auth

import (
	"fmt"
	"net/http"
	"time"
)

// Options say who may do what. The zero value lets every client do everything. With a File or HTTPAddresses, clients
// prove themselves by a secret: in AUTH on an NSQ connection, as "Authorization: Bearer SECRET" over HTTP.
type Options struct {
	// File is a TOML file of tokens. A user of the machine who can read it learns who may do what, but not the tokens:
	// it holds hashes. A file that others may read, write or execute is refused all the same.
	//
	//	[[token]]
	//	name = "billing"                         # shown in /stats, never the token
	//	sha256 = "<64 hex digits>"               # printf %s "$TOKEN" | sha256sum
	//	[[token.grant]]
	//	permissions = ["publish", "subscribe"]   # and "admin"
	//	topics = ["orders", "orders.*"]          # names, with * and ?
	//	channels = ["billing*"]                  # for subscribe and admin; none: all
	File string

	// HTTPAddresses are servers of NSQ's auth protocol, HOST:PORT or a URL. A secret that File does not know is asked
	// of one of them, and of the next if that one fails. What a server permits holds for as long as it says.
	HTTPAddresses []string

	HTTPMethod     string        // GET or POST; GET
	RequestTimeout time.Duration // for one server: 5 s
}

// Enabled says whether clients must prove who they are.
func (o *Options) Enabled() bool { return o.File != "" || len(o.HTTPAddresses) > 0 }

// SetDefaults fills in what is not set and says what is wrong.
func (o *Options) SetDefaults() error {
	if o.HTTPMethod == "" {
		o.HTTPMethod = http.MethodGet
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 5 * time.Second
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

// Permission is a set of actions that a grant allows.
type Permission uint8

// The actions.
const (
	Publish   Permission = 1 << iota
	Subscribe            // to channels, which creates them

	// Admin is to create, delete, empty and pause topics and channels. For all topics and channels it includes the
	// node and the cluster.
	Admin
)

var permissionNames = map[string]Permission{"publish": Publish, "subscribe": Subscribe, "admin": Admin}

func parsePermissions(names []string) (Permission, error) {
	var all Permission
	for _, name := range names {
		p, ok := permissionNames[name]
		if !ok {
			return 0, fmt.Errorf("the permission %q is none of publish, subscribe and admin", name)
		}
		all |= p
	}
	return all, nil
}

// matcher is a pattern of names: a glob of the token file, or a regexp of an auth server.
type matcher interface {
	MatchString(name string) bool
	matchesAll() bool // whatever the name; false if that cannot be told
}

// grant allows some actions on some topics and channels. A grant of a principal has at least one topic pattern.
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

// Principal is whom a secret stands for, as known at one time. It is immutable: when the token file is read again, or
// a server is asked again, there is a new one. Authority.Current says whether one still holds.
type Principal struct {
	name, url string
	grants    []grant
	expires   time.Time  // of a server's answer; zero: file is set
	file      *tokenFile // that knew the secret; nil: a server did
}

// Name is the token's name, or the identity that a server told.
func (p *Principal) Name() string { return p.name }

// URL is the identity's URL that a server told; empty: none.
func (p *Principal) URL() string { return p.url }

// GrantCount is the number of grants.
func (p *Principal) GrantCount() int { return len(p.grants) }

// FromFile says whether the token file knew the secret, and not a server.
func (p *Principal) FromFile() bool { return p.file != nil }

// Allows says whether one grant covers the action on this topic and channel. channel is empty where there is none.
func (p *Principal) Allows(action Permission, topic, channel string) bool {
	for i := range p.grants {
		g := &p.grants[i]
		if g.permissions&action == 0 || !matches(g.topics, topic) {
			continue
		}
		// A server's channel patterns must match "" for publishing, as in nsqd; a file's are only about channels.
		if p.file != nil && channel == "" || matches(g.channels, channel) {
			return true
		}
	}
	return false
}

// AllowsNode says whether the principal may administer everything: the node and the cluster.
func (p *Principal) AllowsNode() bool {
	for i := range p.grants {
		g := &p.grants[i]
		if g.permissions&Admin != 0 && anyMatchesAll(g.topics) && anyMatchesAll(g.channels) {
			return true
		}
	}
	return false
}
