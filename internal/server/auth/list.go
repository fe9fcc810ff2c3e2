package auth

import (
	"fmt"
	"slices"
)

// ListedToken is a token of the file as operators see it: who it is, and what it may do, without anything of its
// secret.
type ListedToken struct {
	Name   string        `json:"name"`
	Grants []ListedGrant `json:"grants"`
}

// ListedGrant is a grant in the notation of the file.
type ListedGrant struct {
	Permissions []string `json:"permissions"`
	Topics      []string `json:"topics"`
	Channels    []string `json:"channels"`
}

// List returns the tokens of the file, in its order, as they are in use. Those of auth servers are known to these only.
// a may be nil.
func (a *Authority) List() []ListedToken {
	out := []ListedToken{}
	if a == nil || a.tokens.Load() == nil {
		return out
	}
	for _, t := range a.tokens.Load().tokens {
		listed := ListedToken{Name: t.principal.name}
		for i := range t.principal.grants {
			g := &t.principal.grants[i]
			listed.Grants = append(listed.Grants, ListedGrant{namesOf(g.permissions), texts(g.topics), texts(g.channels)})
		}
		out = append(out, listed)
	}
	return out
}

func texts(patterns []matcher) []string {
	out := make([]string, len(patterns))
	for i, p := range patterns {
		out[i] = fmt.Sprint(p)
	}
	return out
}

// namesOf returns the names of permissions in the order of the alphabet.
func namesOf(p Permission) (names []string) {
	for name, one := range permissionNames {
		if p&one == one && (name != "view" || p&Admin == 0) { // admin has it, too
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
