package etcd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"penstock/internal/descriptors"
)

const (
	probeTimeout    = 500 * time.Millisecond
	probePause      = 200 * time.Millisecond
	aloneRounds     = 5               // probes before the only voter of several nodes begins; 1 s
	quickRounds     = 10              // probes before a majority is asked; 2 s
	changeTimeout   = 5 * time.Second // of one change of the membership
	maxAnswerBytes  = 1 << 20         // of a probe
	emptyHeader     = "X-Penstock-Empty"
	clusterIDHeader = "X-Etcd-Cluster-ID"
)

// The states of a voter, as a probe finds them.
const (
	silent  = iota // no answer, or none that makes sense
	empty          // the voter waits with an empty directory, as this node does
	running        // the voter runs an etcd member, with or without a majority
)

// sighting is the result of a probe.
type sighting struct {
	name    string // of the node that was asked
	state   int
	members []known // the members that a running voter knows
	cluster uint64  // the id of a running one's cluster
	says    *said   // of an empty one; nil: it says nothing
}

// known is a member as etcd's peer interface describes it.
type known struct {
	ID         uint64   `json:"id"`
	Name       string   `json:"name"` // empty: it was added, but never ran
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"` // empty: it never served clients
}

// way says how a member enters its cluster: etcd's initial-cluster and initial-cluster-state.
type way struct {
	cluster string
	state   string
	force   bool // go on alone, without the other members that the directory names
}

// entry says what this node has to do to get its place in a running cluster.
type entry int

const (
	found   entry = iota // the cluster is just beginning and counts on this node: begin with it
	join                 // its new identity exists already: use it
	add                  // it has no identity: get one
	replace              // its identity is from before it lost its disk: remove that first
	refuse               // another node has its address
)

// decide looks up a node with an empty directory among the members that a running cluster knows:
//
//	same name  same peer address  ever served   entry
//	no         no                 -             add
//	yes        -                  no            found
//	yes        -                  yes           replace
//	unnamed    yes                no            join     (added by an earlier attempt that ended before it had a log)
//	no         yes                -             refuse
func decide(name, peerURL string, members []known) (entry, known) {
	for _, k := range members {
		if k.Name == name {
			if len(k.ClientURLs) == 0 {
				return found, k
			}
			return replace, k
		}
	}
	for _, k := range members {
		if slices.Contains(k.PeerURLs, peerURL) {
			if k.Name == "" {
				return join, k
			}
			return refuse, k
		}
	}
	return add, known{}
}

// bringUp starts etcd, however long it takes to get a place in the cluster. It gives up at Close, if etcd cannot start
// from its log, and on errors that waiting does not cure: not on a shortage of descriptors or of space, which is a
// fault (see Fault). What etcd's code panics with on this goroutine becomes an error.
func (m *Member) bringUp() (server *embed.Etcd, err error) {
	for {
		w, err := m.way()
		found := err == nil
		if found {
			if server, err = m.enterBy(w); err == nil {
				return server, nil
			}
		}
		switch fault := m.lacks(err); {
		case m.ctx.Err() != nil:
			return nil, m.ctx.Err()
		case fault != nil:
			if m.setFault(fault); !m.waitOut(fault, true) {
				return nil, m.ctx.Err()
			}
			continue
		case !found || !errors.Is(err, errTryAgain):
			return nil, err
		}
		m.o.Log.Warn("the embedded etcd member could not enter its cluster and tries again", "error", err)
		if !pause(m.ctx, startRetryPause) {
			return nil, m.ctx.Err()
		}
	}
}

// way is wayIn, with an error in place of a panic.
func (m *Member) way() (w way, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = m.o.unusable(m.o.readBy(string(debug.Stack())), fmt.Sprint(p))
		}
	}()
	return m.wayIn()
}

// enterBy starts etcd and opens its ports. It returns errTryAgain if another attempt may succeed.
func (m *Member) enterBy(w way) (*embed.Etcd, error) {
	all, err := m.listen()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTryAgain, err)
	}
	server, err := m.start(w)
	if err == nil {
		m.open(all)
		return server, nil
	}
	for _, ln := range all {
		_ = ln.Close()
	}
	if has, logErr := hasLog(m.o.Dir); logErr != nil || !has {
		return nil, fmt.Errorf("%w: %w", errTryAgain, errors.Join(err, logErr))
	}
	return nil, m.o.unusable(m.o.Dir, err.Error())
}

// wayIn decides how to start. With an empty directory it waits until the decision is certain.
func (m *Member) wayIn() (way, error) {
	first := way{cluster: m.initialCluster(nil), state: embed.ClusterStateFlagNew}
	has, err := hasLog(m.o.Dir)
	if err != nil {
		return way{}, err
	}
	if has {
		if err := checkFiles(m.o.Dir); err != nil {
			return way{}, m.o.damaged(err)
		}
		if err := m.place(); err != nil {
			return way{}, err
		}
		if err := m.agreeToStart(); err != nil {
			return way{}, err
		}
		if err := m.checkPast(); err != nil {
			return way{}, err
		}
	}
	if has, err = hasLog(m.o.Dir); err != nil || has { // again, as checkPast may have set the files aside
		return first, err // etcd takes everything from its log
	}
	// A database without a log is left over from an interrupted start or a lost disk, and cannot be trusted.
	if err := os.RemoveAll(filepath.Join(m.o.Dir, "member")); err != nil {
		return way{}, fmt.Errorf("etcd: the rest of an unfinished start cannot be removed: %w", err)
	}
	if len(m.o.Peers) == 1 {
		return first, nil
	}
	m.phase.set("the other voters: this node has no metadata, so either one of them knows it, or all of them must be " +
		"there once to begin a cluster")
	hide, err := m.showEmpty()
	if err != nil {
		return way{}, err
	}
	defer hide()
	for round, told := 0, ""; ; round++ {
		all := m.survey()
		if err := m.agreeToBegin(all); err != nil {
			return way{}, err
		}
		w, err := m.decideWay(all, round)
		if !errors.Is(err, errTryAgain) {
			return w, err
		}
		if !errors.Is(err, errWait) && err.Error() != told {
			told = err.Error()
			m.refusal.set(err)
			m.o.Log.Warn("the embedded etcd member has no metadata and gets no place in its cluster yet; it tries again",
				"error", err)
		}
		if !pause(m.ctx, probePause) {
			return way{}, m.ctx.Err()
		}
	}
}

var (
	errTryAgain = errors.New("etcd: the cluster does not give the member a place just now")
	errWait     = fmt.Errorf("%w: the other voters do not answer", errTryAgain)
)

// survey probes all other nodes of the list at once.
func (m *Member) survey() []sighting {
	all := make([]sighting, len(m.o.Peers))
	var asked sync.WaitGroup
	for i, v := range m.o.Peers {
		if v.Name != m.o.Name {
			asked.Go(func() { all[i] = m.probe(m.ctx, v); all[i].name = v.Name })
		}
	}
	asked.Wait()
	return slices.DeleteFunc(all, func(s sighting) bool { return s.name == "" })
}

// decideWay returns how to enter the cluster, or errTryAgain.
//
// A member answers a probe from the entries that it has applied, and a member that was away may know little. So the
// answers of single members are trusted only while the cluster is beginning: all other voters are there, and none of
// them remembers that this node ever served. In every other case a majority has to say what it knows of this node.
func (m *Member) decideWay(all []sighting, round int) (way, error) {
	begins := way{cluster: m.initialCluster(nil), state: embed.ClusterStateFlagNew}
	beginning, witnesses := true, []known(nil)
	for _, s := range all {
		if m.voter(s.name) == nil {
			continue // agreeToBegin has looked at it
		}
		switch s.state {
		case silent:
			beginning = false
		case running:
			if what, _ := decide(m.o.Name, m.peerURL(m.self), s.members); what != found || !m.listed(s.members) {
				beginning = false
			}
			witnesses = append(witnesses, s.members...)
		}
	}
	switch {
	case beginning && len(m.o.Voters) == 1 && round < aloneRounds:
		return way{}, errWait // another node of the list may be about to begin, too
	case beginning:
		return begins, nil
	case witnesses == nil || round < quickRounds:
		// A voter that is just handing its address over to etcd is silent for a moment.
		return way{}, errWait
	}
	return m.enter(witnesses, begins)
}

// probe asks a voter for its state, at the address that it has in the list and at those that it had before.
func (m *Member) probe(ctx context.Context, v Voter) sighting {
	s := m.probeAt(ctx, v)
	for _, old := range m.formerly(v.Name) {
		if s.state == silent {
			s = m.probeAt(ctx, old)
		}
	}
	return s
}

func (m *Member) probeAt(ctx context.Context, v Voter) sighting {
	answer, body, err := fetch(ctx, m.http, m.peerURL(v)+"/members")
	if err != nil {
		return sighting{}
	}
	if token, name, _ := strings.Cut(answer.Header.Get(emptyHeader), "/"); name == v.Name {
		if says := readSaid(body); says != nil || token == m.o.Token { // an older version says nothing
			return sighting{state: empty, says: says}
		}
	}
	s := sighting{state: running}
	s.cluster, _ = strconv.ParseUint(answer.Header.Get(clusterIDHeader), 16, 64)
	err = json.NewDecoder(bytes.NewReader(body)).Decode(&s.members)
	if err != nil || answer.Header.Get(clusterIDHeader) == "" || len(s.members) == 0 {
		return sighting{}
	}
	return s
}

// showEmpty answers the other voters' probes on the peer address until hide is called, before etcd listens there.
func (m *Member) showEmpty() (hide func(), err error) {
	l, err := net.Listen("tcp", m.o.ListenPeer)
	if err != nil {
		return nil, fmt.Errorf("etcd: the embedded member cannot listen: %w", err)
	}
	l = newGate(l, m.tls.server(m.o.Admit), m.o.Log, descriptors.Limit())
	server := &http.Server{
		ReadTimeout: probeTimeout, WriteTimeout: probeTimeout,
		// The other voters give up a probe once another answer has come.
		ErrorLog: slog.NewLogLogger(m.o.Log.Handler(), slog.LevelDebug),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(emptyHeader, m.o.Token+"/"+m.o.Name)
			w.WriteHeader(http.StatusServiceUnavailable)
			m.says().ServeHTTP(w, nil)
		}),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	return func() { _ = server.Close(); <-served }, nil
}

// enter asks the majority of a running cluster for this node's place, and has the membership changed where necessary.
// It returns errTryAgain while there is no majority, or while the majority refuses because too few members are healthy.
func (m *Member) enter(witnesses []known, begins way) (way, error) {
	client, err := m.adminClient(witnesses)
	if err != nil {
		return way{}, fmt.Errorf("%w: %w", errTryAgain, err)
	}
	defer client.Close()
	members, err := m.members(client)
	if err != nil && m.needed(witnesses) {
		members, err = witnesses, nil
	}
	if err != nil {
		return way{}, err
	}
	what, old := decide(m.o.Name, m.peerURL(m.self), members)
	if what == add {
		if err := m.agreeToEnter(); err != nil {
			return way{}, err
		}
	}
	if what == add || what == replace {
		if err := m.mayEnter(client); err != nil {
			return way{}, err
		}
	}
	switch {
	case what == found && m.listed(members):
		return begins, nil
	case what == found: // it has moved before it ever ran, or another one has: etcd computes identities from addresses
		ctx, cancel := context.WithTimeout(m.ctx, changeTimeout)
		defer cancel()
		answer, err := client.MemberUpdate(ctx, old.ID, []string{m.peerURL(m.self)})
		if err != nil {
			return way{}, fmt.Errorf("%w: the new address of %q cannot be told: %w", errTryAgain, m.o.Name, err)
		}
		return way{cluster: m.initialCluster(knownOf(answer.Members)), state: embed.ClusterStateFlagExisting}, nil
	case what == refuse:
		return way{}, fmt.Errorf("etcd: the cluster has the member %q at %s, which is the address of %q: give every node "+
			"its own name and address; nothing was changed", old.Name, m.self.Peer, m.o.Name)
	case what == replace && m.livesElsewhere(old):
		return way{}, fmt.Errorf("etcd: a member named %q runs at %s: a second node must have another name; nothing was "+
			"changed", old.Name, strings.Join(old.PeerURLs, ", "))
	case what == replace:
		m.o.Log.Warn("this node's etcd directory is empty, but the cluster knows the node: its old identity is replaced by "+
			"a new one", "name", m.o.Name, "old", old.ID)
		ctx, cancel := context.WithTimeout(m.ctx, changeTimeout)
		defer cancel()
		if _, err := client.MemberRemove(ctx, old.ID); err != nil {
			return way{}, fmt.Errorf("%w: the old identity of %q cannot be removed: %w", errTryAgain, m.o.Name, err)
		}
	}
	if what != join {
		ctx, cancel := context.WithTimeout(m.ctx, changeTimeout)
		defer cancel()
		answer, err := client.MemberAdd(ctx, []string{m.peerURL(m.self)})
		if err != nil {
			return way{}, fmt.Errorf("%w: %q cannot be added: %w", errTryAgain, m.o.Name, err)
		}
		members = knownOf(answer.Members) // another question might need this member for its majority
	}
	return way{cluster: m.initialCluster(members), state: embed.ClusterStateFlagExisting}, nil
}

// mayEnter asks MemberOptions.Enters with what a majority of the running members has.
func (m *Member) mayEnter(client *clientv3.Client) error {
	if m.o.Enters == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.ctx, changeTimeout)
	defer cancel()
	answer, err := client.Get(ctx, m.o.EntersPrefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("%w: the running members do not say whether %q may enter: %w", errTryAgain, m.o.Name, err)
	}
	return m.o.Enters(entriesOf(answer.Kvs))
}

// listed says whether all the members that a running one knows have the addresses of the list of voters.
func (m *Member) listed(members []known) bool {
	for _, k := range members {
		if v := m.voter(k.Name); v != nil && !slices.Equal(k.PeerURLs, []string{m.peerURL(*v)}) {
			return false
		}
	}
	return true
}

// needed says whether the members that were seen are one that runs and this node, which was added by an earlier attempt
// that ended before it had a log. Then there is no majority without this node, and nobody else could have changed the
// membership since. etcd compares the members again when it starts.
func (m *Member) needed(witnesses []known) bool {
	what, _ := decide(m.o.Name, m.peerURL(m.self), witnesses)
	return what == join && len(witnesses) == 2
}

// members reads the membership, which needs a majority.
func (m *Member) members(client *clientv3.Client) ([]known, error) {
	ctx, cancel := context.WithTimeout(m.ctx, changeTimeout)
	defer cancel()
	answer, err := client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: the running members have no majority that says what it knows of %q: %w",
			errTryAgain, m.o.Name, err)
	}
	return knownOf(answer.Members), nil
}

func knownOf(all []*etcdserverpb.Member) []known {
	members := make([]known, len(all))
	for i, k := range all {
		members[i] = known{ID: k.ID, Name: k.Name, PeerURLs: k.PeerURLs, ClientURLs: k.ClientURLs}
	}
	return members
}

// livesElsewhere says whether member k answers at an address other than this node's. If so, k has not lost its disk: it
// is another node with the same name.
func (m *Member) livesElsewhere(k known) bool {
	for _, u := range k.PeerURLs {
		at, err := url.Parse(u)
		taken := func(v Voter) bool { return v.Peer == at.Host } // by this node, or by another that has moved there
		if err != nil || slices.ContainsFunc(m.o.Voters, taken) {
			continue
		}
		if m.probeAt(m.ctx, Voter{Name: k.Name, Peer: at.Host}).state != silent {
			return true
		}
	}
	return false
}

// adminClient returns a client of the members that serve, without this node.
func (m *Member) adminClient(members []known) (*clientv3.Client, error) {
	var endpoints []string
	for _, k := range members {
		if k.Name != m.o.Name {
			endpoints = append(endpoints, k.ClientURLs...)
			if v := m.voter(k.Name); v != nil {
				endpoints = append(endpoints, m.o.TLS.scheme()+"://"+v.Client)
			}
		}
	}
	o := clientv3.Config{Endpoints: endpoints, DialTimeout: changeTimeout, Logger: clientLogger(m.o.Log)}
	if c := m.tls.credentials(); c != nil {
		o.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(c)}
	}
	return clientv3.New(o)
}

// initialCluster formats the members as etcd expects them, or the voters if members is nil. A member that never ran has
// no name; it gets the name that the voters have for its address.
func (m *Member) initialCluster(members []known) string {
	names := make(map[string]string)
	var items []string
	for _, v := range m.o.Voters {
		names[v.Peer] = v.Name
		if members == nil {
			items = append(items, v.Name+"="+m.peerURL(v))
		}
	}
	for i, k := range members {
		for _, u := range k.PeerURLs {
			items = append(items, cmp.Or(k.Name, names[hostOf(u)], "unnamed-"+strconv.Itoa(i))+"="+u)
		}
	}
	return strings.Join(items, ",")
}

func (m *Member) peerURL(v Voter) string { return m.o.TLS.scheme() + "://" + v.Peer }

func urls(scheme, address string) []url.URL { return []url.URL{{Scheme: scheme, Host: address}} }

// hasLog says whether dir has etcd's write-ahead log, which etcd creates in one atomic step. An error is not an answer:
// who has no log is a new member, and its files are removed.
func hasLog(dir string) (bool, error) {
	names, err := logNames(filepath.Join(dir, memberDir, "wal"))
	if err != nil {
		return false, fmt.Errorf("etcd: whether the embedded member has a log cannot be told: %w", err)
	}
	return len(names) > 0, nil
}
