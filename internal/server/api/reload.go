package api

import (
	"net/http"
	"net/url"
	"strings"
	"time"
)

// What came of a file of credentials when the node looked at it.
const (
	Reloaded  = "reloaded"  // the node uses what is in it now
	Unchanged = "unchanged" // it has what the node uses already
	Refused   = "refused"   // what is in it cannot be used: the node goes on with what it had
)

// CredentialFile is a file of certificates, keys, tokens, passwords or secrets that a setting names.
type CredentialFile struct {
	Setting string    `json:"setting"`
	File    string    `json:"file"`
	Result  string    `json:"result"`
	Since   time.Time `json:"since"` // when the node took what it uses
	Error   string    `json:"error"` // why it was refused; empty otherwise
}

// Reload is the answer of POST /reload.
type Reload struct {
	Files []CredentialFile `json:"files"`
}

// Refusals says which files were refused and why, a sentence for each reason; empty: none.
func (r *Reload) Refusals() string {
	var why []string
	var of [][]string
	for _, f := range r.Files {
		switch last := len(why) - 1; {
		case f.Result != Refused:
		case last >= 0 && why[last] == f.Error:
			of[last] = append(of[last], f.Setting)
		default:
			why, of = append(why, f.Error), append(of, []string{f.Setting})
		}
	}
	for i := range why {
		why[i] = strings.Join(of[i], ", ") + ": " + why[i]
	}
	return strings.Join(why, "; ")
}

// serveReload makes the node look at its files of credentials now.
func (s *Service) serveReload(*http.Request, url.Values) (any, error) {
	if s.opts.Reload == nil {
		return &Reload{Files: []CredentialFile{}}, nil
	}
	return &Reload{Files: s.opts.Reload()}, nil
}
