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

// SettingChange is a setting of which the sources, such as the configuration file, have another value than a node that
// was told to read them again had. Secrets are shown as set.
type SettingChange struct {
	Setting string `json:"setting"` // its key in the file
	From    string `json:"from"`    // what the node had
	To      string `json:"to"`      // what the source says
	Source  string `json:"source"`
}

// Reload is the answer of POST /reload.
type Reload struct {
	// Files are those of credentials, and behind them the configuration file, if there is one.
	Files   []CredentialFile `json:"files"`
	Changed []SettingChange  `json:"changed"` // settings that the node has changed now
	Restart []SettingChange  `json:"restart"` // settings that need a restart: the node goes on with From
}

// Setting is a setting of the node as GET /config lists them.
type Setting struct {
	Setting      string `json:"setting"`
	Value        any    `json:"value"` // which the node uses
	Source       string `json:"source"`
	WhileRunning string `json:"while_running"`  // what becomes of a new value while the node runs
	Says         string `json:"says,omitempty"` // what the sources say now, if that is something else
}

// Settings is the answer of GET /config.
type Settings struct {
	Settings []Setting `json:"settings"`
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

// serveReload makes the node look at its files of credentials and its settings now.
func (s *Service) serveReload(*http.Request, url.Values) (any, error) {
	r := new(Reload)
	if s.opts.Reload != nil {
		r = s.opts.Reload()
	}
	r.Files, r.Changed, r.Restart = listed(r.Files), listed(r.Changed), listed(r.Restart)
	return r, nil
}

// listed returns a list that JSON has as a list, also if it is empty.
func listed[T any](all []T) []T { return append([]T{}, all...) }
