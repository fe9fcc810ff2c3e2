package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
	"google.golang.org/grpc/connectivity"

	"penstock/internal/cluster/kv"
)

// A member whose directory is put back to an earlier moment has forgotten what it promised: its vote can elect a leader
// that lacks what the cluster decided, and etcd panics when it is told of entries that it had acknowledged. etcd cannot
// see this in its files. So a member with a log asks the others what they know of this node before it starts, and
// MemberOptions.Older compares that with the node's data directory:
//
//	the others         they know                          the member
//	have a majority    nothing newer than the directory   starts
//	have a majority    newer                              is set aside, and gets a new identity as after a lost disk
//	have none          nothing newer, or do not answer    starts: without it there may never be a majority
//	have none          newer                              waits for a majority of the others, and does not vote
//
// The old files are renamed only after a majority answered without this member. The way of an empty directory then
// removes the old identity. A crash leaves the old directory, which is judged again, or the empty one.

const (
	askTimeout = 3 * time.Second // of a question to a majority: it may be electing a leader
	oneTimeout = time.Second     // of a question to one member, which answers from its own files
	// A member that serves has accepted a connection within serveTimes the time of its answer on the peer port, or
	// within serveAtLeast.
	serveTimes   = 10
	serveAtLeast = 100 * time.Millisecond
	// olderName begins the name of the directory, in the member's own, in which the files of an older state are kept.
	// The rest is the Unix time in seconds.
	olderName = "older-"
)

// ErrDirectory says that the member cannot use its directory.
var ErrDirectory = errors.New("etcd: the directory of the embedded member cannot be used")

// Testimony is what other members have below MemberOptions.Prefix.
type Testimony struct {
	Rows     []kv.Entry
	Revision int64 // of the store, as far as who answered knows
	Majority bool  // a majority without this member answered; otherwise one member alone, whose knowledge may be old
}

// verdict says what a member with a log does.
type verdict int

const (
	votes verdict = iota // it starts
	anew                 // it forgets its identity and gets a new one
	waits                // it is of an older directory, but the others cannot replace it yet
)

// weigh decides by what the others know that the directory does not: the answer of a majority, or those of single
// members where there is none. An empty text means nothing. older is what a single member said before: only a majority
// takes that back, not silence, and not another member that knows less.
func weigh(older string, majority bool, newer ...string) (verdict, string) {
	for _, why := range newer {
		switch {
		case why == "":
		case majority:
			return anew, why
		default:
			return waits, why
		}
	}
	if older != "" && !majority {
		return waits, older
	}
	return votes, ""
}

// checkPast asks the other members before this one starts from its log. It waits while the directory is an older one
// and the others have no majority, until Close. It returns with the log in place if the member may vote, and without it
// if the member has to be added anew.
func (m *Member) checkPast() error {
	if m.o.Older == nil || len(m.o.Voters) == 1 {
		return nil
	}
	for older := ""; ; {
		v, why := m.askOthers(older)
		switch v {
		case votes:
			return nil
		case anew:
			return m.setAside(why)
		}
		refusal := fmt.Errorf("%w: %s is an older state of itself: %s. The member has forgotten what it promised and must "+
			"not vote; the messages are unharmed. Start the other nodes in cluster-peers: once a majority of them runs, this "+
			"member is added anew", ErrDirectory, m.o.Dir, why)
		m.refusal.set(refusal)
		m.phase.set("a majority of the other members: its directory is an older state of itself, and must not count")
		if older == "" {
			m.o.Log.Warn("the embedded etcd member does not start yet", "error", refusal)
		}
		older = why
		if !pause(m.ctx, probePause) {
			return m.ctx.Err()
		}
	}
}

// askOthers asks for a majority's answer if enough of the other members run, and otherwise each of them for its own.
// older is what an earlier answer said.
func (m *Member) askOthers(older string) (verdict, string) {
	var voters []Voter
	for _, v := range m.o.Voters {
		if v.Name != m.o.Name {
			voters = append(voters, v)
		}
	}
	var all sync.WaitGroup
	took := make([]time.Duration, len(voters)) // 0: it does not run
	for i, v := range voters {
		all.Go(func() {
			if begin := time.Now(); m.probe(m.ctx, v).state == running {
				took[i] = max(1, time.Since(begin))
			}
		})
	}
	all.Wait()
	var up []Voter
	for i, v := range voters {
		if took[i] > 0 {
			up = append(up, v)
		}
	}
	if len(up) > m.memberCount()/2 {
		if t, err := m.ask(askTimeout, up); err == nil {
			t.Majority = true
			return weigh(older, true, m.newer(t))
		}
	}
	known := make([]Testimony, len(voters))
	for i, v := range voters {
		if took[i] > 0 {
			all.Go(func() { known[i] = m.askOne(v, took[i]) })
		}
	}
	all.Wait()
	var newer []string
	for _, t := range known {
		if t.Revision > 0 {
			newer = append(newer, m.newer(t))
		}
	}
	return weigh(older, false, newer...)
}

// askOne asks a member for its own answer; without one it returns zero. probed is how long an answer on its peer port
// took. A member listens for clients from its start, and does not serve them before it has heard of a leader, for which
// it may need this member's vote: it is not waited for then.
func (m *Member) askOne(v Voter, probed time.Duration) Testimony {
	client, err := m.clientOf(v)
	if err != nil {
		return Testimony{}
	}
	defer client.Close()
	if !serves(m.ctx, client, max(serveTimes*probed, serveAtLeast)) {
		return Testimony{}
	}
	t, err := m.read(oneTimeout, client, clientv3.WithSerializable())
	if err != nil {
		return Testimony{}
	}
	return t
}

// ask asks the given members for what a majority has.
func (m *Member) ask(limit time.Duration, of []Voter) (Testimony, error) {
	client, err := m.clientOf(of...)
	if err != nil {
		return Testimony{}, err
	}
	defer client.Close()
	return m.read(limit, client)
}

func (m *Member) clientOf(of ...Voter) (*clientv3.Client, error) {
	var members []known
	for _, v := range of {
		k := known{Name: v.Name}
		for _, old := range m.formerly(v.Name) {
			k.ClientURLs = append(k.ClientURLs, m.o.TLS.scheme()+"://"+old.Client)
		}
		members = append(members, k)
	}
	return m.adminClient(members)
}

// read reads what there is of the nodes.
func (m *Member) read(limit time.Duration, client *clientv3.Client, how ...clientv3.OpOption) (Testimony, error) {
	ctx, cancel := context.WithTimeout(m.ctx, limit)
	defer cancel()
	answer, err := client.Get(ctx, m.o.Prefix, append(how, clientv3.WithPrefix())...)
	if err != nil {
		return Testimony{}, err
	}
	return Testimony{Revision: answer.Header.Revision, Rows: entriesOf(answer.Kvs)}, nil
}

// serves says whether a client's only endpoint accepts the client within limit.
func serves(ctx context.Context, client *clientv3.Client, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn := client.ActiveConnection()
	conn.Connect()
	for {
		at := conn.GetState()
		if at == connectivity.Ready || !conn.WaitForStateChange(ctx, at) {
			return at == connectivity.Ready
		}
	}
}

// setAside renames the files of the member, so that the next look finds an empty directory. It refuses if the member's
// identity is in use elsewhere.
func (m *Member) setAside(why string) error {
	for _, s := range m.survey() {
		if what, k := decide(m.o.Name, m.peerURL(m.self), s.members); what == replace && m.livesElsewhere(k) {
			return fmt.Errorf("%w: %s is an older state of a member that runs at %v: %s; nothing was changed, start only one "+
				"of the two", ErrDirectory, m.o.Dir, k.PeerURLs, why)
		}
	}
	kept, err := SetAside(m.o.Dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	m.o.Log.Warn("the directory of the embedded etcd is an older state of itself: the member has forgotten what it "+
		"promised, so it does not vote. Its files are kept, the other members remove its old identity, and it is added "+
		"anew; the messages are unharmed", "why", why, "directory", m.o.Dir, "kept", kept)
	m.kept.set(kept)
	m.refusal.set(nil)
	return nil
}

// SetAside renames the files of a member that does not run, so that its next start finds an empty directory. It returns
// where they are kept, within dir; empty: there were none. A crash leaves them in the old place or in the new one.
func SetAside(dir string) (kept string, err error) {
	whole := filepath.Join(dir, memberDir)
	if _, err := os.Stat(whole); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	kept = filepath.Join(dir, olderName+strconv.FormatInt(time.Now().Unix(), 10))
	if err := os.Rename(whole, kept); err != nil {
		return "", fmt.Errorf("etcd: the files of the embedded member cannot be set aside: %w", err)
	}
	return kept, syncDir(dir)
}

// newer returns what MemberOptions.Older finds in the answer of other members that the data directory should know;
// empty: nothing. The member's own database may have the row in which Older found it. Then the member is not of an
// older state, and newer returns "": only the data directory is older, or an earlier start has added the member anew
// and the node has not registered since.
func (m *Member) newer(t Testimony) string {
	why, since := m.o.Older(t)
	if why != "" && hasRevision(m.o.Dir, since) {
		return ""
	}
	return why
}

// hasRevision says whether the member's database has a change of this revision or a later one. The database may lack
// what the log has from the last moments. The member does not run yet.
func hasRevision(dir string, revision int64) bool {
	file := filepath.Join(dir, memberDir, "snap", "db")
	if _, err := os.Stat(file); err != nil {
		return false
	}
	be := backend.NewDefaultBackend(zap.NewNop(), file)
	defer be.Close()
	tx := be.ReadTx()
	tx.RLock()
	defer tx.RUnlock()
	from := mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
	later, _ := tx.UnsafeRange(schema.Key, from, []byte{0xff}, 1)
	return len(later) > 0
}

// Kept returns where this process keeps the files of the older state from which it did not start; empty: there was
// none.
func (m *Member) Kept() string { return m.kept.get() }
