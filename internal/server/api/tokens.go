package api

import (
	"net/http"
	"net/url"
	"time"

	"penstock/internal/server/auth"
)

// Tokens is the answer of GET /tokens: the tokens of the node's file, and behind them others that have made topics.
type Tokens struct {
	Tokens       []ListedToken `json:"tokens"`
	SharePercent int           `json:"share_percent"` // how much of a limit one token may take (token-share)
}

// ListedToken is a token, without its secret, and its sessions and share at this node.
type ListedToken struct {
	auth.ListedToken
	// Elsewhere says that the tokens file does not have the token: it was taken out and grants nothing, or an auth
	// server knows it.
	Elsewhere bool        `json:"elsewhere,omitempty"`
	Sessions  int         `json:"sessions"`        // of browsers that are logged in at this node
	Share     *TokenShare `json:"share,omitempty"` // of the topics that it has made, if there are any
}

// TokenShare is node.TokenUse.
type TokenShare struct {
	Topics      int64   `json:"topics"`
	Partitions  int64   `json:"partitions"`
	StateBytes  int64   `json:"state_bytes"`
	StoredBytes int64   `json:"stored_bytes"`
	OfLimit     float64 `json:"of_limit"` // 0 to 1
}

// serveTokens lists the tokens.
func (s *Service) serveTokens(*http.Request, url.Values) (any, error) {
	out := Tokens{Tokens: []ListedToken{}, SharePercent: s.engine.Catalog().TokenShare()}
	sessions, at := s.sessions.count(time.Now()), map[string]int{}
	for _, t := range s.auth.List() {
		at[t.Name] = len(out.Tokens)
		out.Tokens = append(out.Tokens, ListedToken{ListedToken: t, Sessions: sessions[t.Name]})
	}
	for _, u := range s.engine.Catalog().TokenUses() {
		i, listed := at[u.Token]
		if !listed {
			i = len(out.Tokens)
			out.Tokens = append(out.Tokens, ListedToken{
				ListedToken: auth.ListedToken{Name: u.Token, Grants: []auth.ListedGrant{}}, Elsewhere: true,
				Sessions: sessions[u.Token],
			})
		}
		out.Tokens[i].Share = &TokenShare{u.Topics, u.Partitions, u.StateBytes, u.StoredBytes, u.OfLimit}
	}
	return out, nil
}
