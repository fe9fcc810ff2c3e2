package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"path"

	"github.com/pelletier/go-toml/v2"
)

const (
	maxTokenFileBytes = 4 << 20
	maxTokens         = 10_000
	maxGrants         = 1000 // grants per principal, and also patterns per grant
)

// tokenFile is the contents of the token file when it was read. It is immutable. Its address is its identity: a
// principal whose file is not the Authority's newest tokenFile is no longer current.
type tokenFile struct{ tokens []token }

// token is the hash of a secret and the principal that the secret stands for.
type token struct {
	hash      [sha256.Size]byte
	principal *Principal
}

// find compares the secret's hash with the hash of every token, in constant time, so that a client cannot learn
// anything about the hashes by measuring response times.
func (f *tokenFile) find(secret string) *Principal {
	hash := sha256.Sum256([]byte(secret))
	at := -1
	for i := range f.tokens {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], f.tokens[i].hash[:]), i, at)
	}
	if at < 0 {
		return nil
	}
	return f.tokens[at].principal
}

// glob is a pattern for whole names: * matches any run of characters, ? exactly one.
type glob string

func (g glob) MatchString(name string) bool {
	ok, err := path.Match(string(g), name) // names have no slash, at which * would stop
	return ok && err == nil
}

func (g glob) matchesAll() bool { return g == "*" }

// globs checks and converts the topic patterns, or the channel patterns, of one grant.
func globs(patterns []string) ([]matcher, error) {
	if len(patterns) > maxGrants {
		return nil, fmt.Errorf("%d patterns are more than the %d that a grant may have", len(patterns), maxGrants)
	}
	out := make([]matcher, 0, len(patterns))
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return nil, fmt.Errorf("%q is no pattern of names", p)
		}
		out = append(out, glob(p))
	}
	return out, nil
}

// tokenTOML is the syntax of the token file; Options.File describes it.
type tokenTOML struct {
	Token []struct {
		Name   string `toml:"name"`
		SHA256 string `toml:"sha256"`
		Grant  []struct {
			Permissions []string `toml:"permissions"`
			Topics      []string `toml:"topics"`
			Channels    []string `toml:"channels"`
		} `toml:"grant"`
	} `toml:"token"`
}

// readTokens reads and checks the token file at path name.
func readTokens(name string, readable bool) (*tokenFile, error) {
	data, err := ReadPrivate(name, maxTokenFileBytes, readable)
	if err != nil {
		return nil, fmt.Errorf("nsq: the token file cannot be used: %w", err)
	}
	f, err := parseTokens(data)
	if err != nil {
		return nil, fmt.Errorf("nsq: the token file %s cannot be used: %w", name, err)
	}
	return f, nil
}

// parseTokens parses the token file. Names and hashes must be unique, and every token needs at least one grant.
func parseTokens(data []byte) (*tokenFile, error) {
	var in tokenTOML
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, tomlError(err)
	}
	if len(in.Token) > maxTokens {
		return nil, fmt.Errorf("%d tokens are more than the %d it may have", len(in.Token), maxTokens)
	}
	f := &tokenFile{tokens: make([]token, 0, len(in.Token))}
	names, hashes := map[string]bool{}, map[[sha256.Size]byte]bool{}
	for i := range in.Token {
		t := &in.Token[i]
		if t.Name == "" || names[t.Name] {
			return nil, fmt.Errorf("token %d needs a name of its own, not %q", i+1, t.Name)
		}
		names[t.Name] = true
		out := token{principal: &Principal{name: t.Name, file: f}}
		// The operator may have put the token itself there, so no error quotes the text.
		if n, err := hex.Decode(out.hash[:], hashText(t.SHA256)); err != nil || n != sha256.Size || hashes[out.hash] {
			return nil, fmt.Errorf("sha256 of token %q is not 64 hex digits that no other token has", t.Name)
		}
		hashes[out.hash] = true
		for _, g := range t.Grant {
			made, err := newGrant(g.Permissions, g.Topics, g.Channels)
			if err != nil {
				return nil, fmt.Errorf("a grant of token %q: %w", t.Name, err)
			}
			out.principal.grants = append(out.principal.grants, made)
		}
		if n := len(out.principal.grants); n == 0 || n > maxGrants {
			return nil, fmt.Errorf("token %q has %d grants; it needs 1 to %d", t.Name, n, maxGrants)
		}
		f.tokens = append(f.tokens, out)
	}
	return f, nil
}

// hashText returns s if it has the length of a hash in hex, and nil otherwise.
func hashText(s string) []byte {
	if len(s) != 2*sha256.Size {
		return nil
	}
	return []byte(s)
}

// newGrant makes a grant of the token file. It requires permissions and topics; without channels the grant covers all
// of them.
func newGrant(permissions, topics, channels []string) (g grant, err error) {
	if g.permissions, err = parsePermissions(permissions); err != nil {
		return g, err
	}
	if g.permissions == 0 || len(topics) == 0 {
		return g, errors.New("it needs permissions and topics")
	}
	if len(channels) == 0 {
		channels = []string{"*"}
	}
	if g.topics, err = globs(topics); err != nil {
		return g, err
	}
	g.channels, err = globs(channels)
	return g, err
}

// tomlError describes where the file is wrong without quoting any of its contents.
func tomlError(err error) error {
	var missing *toml.StrictMissingError
	if errors.As(err, &missing) && len(missing.Errors) > 0 {
		line, _ := missing.Errors[0].Position()
		return fmt.Errorf("line %d has an unknown key", line)
	}
	var de *toml.DecodeError
	if errors.As(err, &de) {
		line, col := de.Position()
		return fmt.Errorf("it is not valid TOML at line %d, column %d", line, col)
	}
	return errors.New("it is not valid TOML")
}
