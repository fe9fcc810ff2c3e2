package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/server"
	"penstock/internal/server/api"
	"penstock/internal/server/auth"
)

// lookEvery is how often a node looks whether a file of credentials has changed.
const lookEvery = 5 * time.Second

// credentialSet names the files of credentials that are taken together or not at all: a certificate without its key is
// of no use.
type credentialSet string

const (
	setTLS      credentialSet = "clients' TLS"
	setTokens   credentialSet = "tokens"
	setServers  credentialSet = "auth servers"
	setNodes    credentialSet = "other nodes"
	setEtcd     credentialSet = "etcd"
	setPassword credentialSet = "etcd's password"
)

// joins says whether a node needs the set to join its cluster; the others are for clients.
func (s credentialSet) joins() bool { return s == setNodes || s == setEtcd || s == setPassword }

// holds says what is in a file of credentials, as far as its time matters.
type holds int

const (
	holdsSecret      holds = iota // it does not end
	holdsCertificate              // a chain
	holdsAuthorities
)

// credentialFile is a file of credentials that a setting names.
type credentialFile struct {
	set     credentialSet
	setting string
	name    string
	holds   holds
	state   string // before the node has read it
}

// credentialFiles returns the files that the settings name. It is called before anything reads them, and before the
// node chooses certificates for its embedded etcd from them.
func credentialFiles(n *settings.Options) []credentialFile {
	t, trust, etcd := &n.NSQ.TLS, &n.Cluster.Trust, &n.Cluster.EtcdTLS
	all := slices.DeleteFunc([]credentialFile{
		{setTLS, "tls-cert", t.CertFile, holdsCertificate, ""},
		{setTLS, "tls-key", t.KeyFile, holdsSecret, ""},
		{setTLS, "tls-root-ca-file", t.RootCAFile, holdsAuthorities, ""},
		{setTokens, "auth-file", n.NSQ.Auth.File, holdsSecret, ""},
		{setServers, "auth-http-address-file", n.Offers.AuthFile, holdsSecret, ""},
		{setNodes, "cluster-secret-file", trust.SecretFile, holdsSecret, ""},
		{setNodes, "cluster-tls-cert", trust.Cert, holdsCertificate, ""},
		{setNodes, "cluster-tls-key", trust.Key, holdsSecret, ""},
		{setNodes, "cluster-tls-ca", trust.CA, holdsAuthorities, ""},
		{setEtcd, "etcd-cert-file", etcd.Cert, holdsCertificate, ""},
		{setEtcd, "etcd-key-file", etcd.Key, holdsSecret, ""},
		{setEtcd, "etcd-ca-file", etcd.CA, holdsAuthorities, ""},
		{setPassword, "etcd-password-file", n.Cluster.EtcdPasswordFile, holdsSecret, ""},
	}, func(f credentialFile) bool { return f.name == "" })
	for i := range all {
		all[i].state = stateOf(all[i].name)
	}
	return all
}

// credentials watches the files that say who this node is and whom it trusts: certificates, keys, tokens, the cluster's
// secret. They are read again at SIGHUP, when an operator asks for it (POST /reload), and by themselves when one of
// them has changed: where secrets are mounted, nobody sends a signal.
type credentials struct {
	// read takes the files of a set; after an error what was taken before holds on.
	read  func(credentialSet, []credentialFile) error
	taken func(settings []string) // is told what was taken
	stale func(bool)              // is told whether files on the disk cannot be used
	log   *slog.Logger
	now   func() time.Time

	serves func(*server.Server) // adds the files for clients when there is a server, which has read them

	mu   sync.Mutex // guards the rest, and is held while files are read
	sets []*watchedSet
}

// watchedSet is what credentials knows of a set.
type watchedSet struct {
	name    credentialSet
	files   []credentialFile
	used    []string // the states of the files when they were taken
	seen    []string // when they were read last
	since   []time.Time
	refusal error // of that; nil: they were taken
}

// watch begins with files that the node has taken: all of a set, and of none that is watched already.
func (c *credentials) watch(files []credentialFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range files {
		at := slices.IndexFunc(c.sets, func(w *watchedSet) bool { return w.name == f.set })
		if at < 0 {
			at = len(c.sets)
			c.sets = append(c.sets, &watchedSet{name: f.set})
		}
		w := c.sets[at]
		w.files = append(w.files, f)
		w.used = append(w.used, f.state)
		w.seen = w.used
		w.since = append(w.since, c.now())
	}
}

// stateOf tells two contents of a file apart, also where it is a link that somebody turns.
func stateOf(file string) string {
	var st syscall.Stat_t
	err := syscall.Stat(file, &st)
	return fmt.Sprintln(err, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

func (w *watchedSet) states() []string {
	states := make([]string, len(w.files))
	for i, f := range w.files {
		states[i] = stateOf(f.name)
	}
	return states
}

// look reads the sets of which a file has changed since they were read, or that could not be used then; all of them if
// asked is set. It says only once of the same files that they cannot be used. why says what made it do so.
func (c *credentials) look(why string, asked bool) []api.CredentialFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []api.CredentialFile
	var read, took []string
	var refused []error
	bad := false
	for _, w := range c.sets {
		states := w.states() // before the files are read: what changes meanwhile is found the next time
		changed := !slices.Equal(states, w.seen)
		if changed || asked || w.refusal != nil {
			settings, err := c.take(w, states)
			took = append(took, settings...)
			switch {
			case err == nil:
				read = append(read, string(w.name))
			case changed || asked:
				refused = append(refused, err)
			}
		}
		bad = bad || w.refusal != nil
		all = append(all, w.results(states, took)...)
	}
	c.stale(bad)
	c.taken(took)
	if len(read) > 0 || asked && len(c.sets) == 0 {
		c.log.Info(why+": certificates and tokens were read again; connections stay", "of", strings.Join(read, ", "))
	}
	if len(refused) > 0 {
		c.log.Error(why+": reading again failed; what was read before holds on", "error", errors.Join(refused...))
	}
	return all
}

// take reads a set, and returns the settings whose files are others than those in use.
func (c *credentials) take(w *watchedSet, states []string) (settings []string, err error) {
	w.seen = states
	if w.refusal = c.read(w.name, w.files); w.refusal != nil {
		return nil, w.refusal
	}
	for i, f := range w.files {
		if states[i] != w.used[i] {
			settings, w.since[i] = append(settings, f.setting), c.now()
		}
	}
	w.used = states
	return settings, nil
}

// results says of each file what came of the last look. Of a set that was refused, those that have changed are refused;
// if none has, all are.
func (w *watchedSet) results(states, took []string) (all []api.CredentialFile) {
	same := slices.Equal(states, w.used)
	for i, f := range w.files {
		r := api.CredentialFile{Setting: f.setting, File: f.name, Result: api.Unchanged, Since: w.since[i]}
		switch {
		case w.refusal != nil && (same || states[i] != w.used[i]):
			r.Result, r.Error = api.Refused, cli.Sentence(w.refusal)
		case slices.Contains(took, f.setting):
			r.Result = api.Reloaded
		}
		all = append(all, r)
	}
	return all
}

// checkSecrets returns an error if everybody on this machine may read or change one of these files that has a secret:
// a private key, a token, the cluster's secret. It is the same check for all of them.
func checkSecrets(n *settings.Options, files []credentialFile) error {
	for _, f := range files {
		if f.holds != holdsSecret {
			continue
		}
		if err := auth.CheckPrivate(f.name, n.NSQ.Auth.ReadableFiles); err != nil {
			return fmt.Errorf("the file of %s cannot be used: %w", f.setting, err)
		}
	}
	return nil
}

// readCredentials takes the files of a set, which are these, as they are now.
func readCredentials(
	n *settings.Options, set credentialSet, files []credentialFile, srv *server.Server, part *clusterPart,
) error {
	if err := checkSecrets(n, files); err != nil {
		return err
	}
	switch set {
	case setTLS:
		return srv.ReloadTLS()
	case setTokens:
		return srv.ReloadTokens()
	case setServers:
		addresses, err := n.AuthServers()
		if err != nil {
			return err
		}
		return srv.SetAuthServers(addresses)
	case setNodes:
		return part.reload()
	case setEtcd:
		return part.reloadEtcd()
	case setPassword:
		return part.reloadPassword(n)
	}
	panic("BUG: nobody reads " + string(set))
}

// watchCredentials makes what watches the files of a node that is about to join its cluster. A node that waits for the
// others, or for etcd, may wait for new files.
func watchCredentials(
	n *settings.Options, files []credentialFile, certs *certificates, part *clusterPart, logger *slog.Logger,
) *credentials {
	var srv atomic.Pointer[server.Server] // nil: there is none yet
	c := &credentials{
		read: func(set credentialSet, files []credentialFile) error {
			return readCredentials(n, set, files, srv.Load(), part)
		},
		taken: certs.readAgain, log: logger, now: time.Now,
		stale: func(bad bool) {
			if s := srv.Load(); s != nil {
				s.CredentialsStale(bad)
			}
		},
	}
	c.serves = func(s *server.Server) {
		srv.Store(s)
		c.watch(slices.DeleteFunc(slices.Clone(files), func(f credentialFile) bool { return f.set.joins() }))
	}
	c.watch(slices.DeleteFunc(slices.Clone(files), func(f credentialFile) bool { return !f.set.joins() }))
	return c
}

// lookOn calls reload at each signal, and looks at the files every lookEvery, until the returned function is called.
func (c *credentials) lookOn(
	signals chan os.Signal, certs *certificates, reload func(why string) *api.Reload,
) (stop func()) {
	ended := make(chan struct{})
	ticker := time.NewTicker(lookEvery)
	go func() {
		defer close(ended)
		defer ticker.Stop()
		for {
			select {
			case _, open := <-signals:
				if !open {
					return
				}
				reload("SIGHUP")
			case <-ticker.C:
				c.look("a file of credentials has changed", false)
				certs.tell(time.Now())
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-ended
	}
}
