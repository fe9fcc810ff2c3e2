package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"penstock/internal/cluster/kv"
)

// ErrMemberStopped is in Member.Err when etcd ended by itself, for example because the cluster removed the member.
var ErrMemberStopped = errors.New("etcd: the embedded member stopped")

// MemberOptions configure a member. Zero values of the second group mean the defaults.
type MemberOptions struct {
	Name   string  // of this node; one of Voters
	Voters []Voter // all members of the cluster (see Voters); the same list on every node
	Peers  []Voter // all nodes of the list (see ParsePeers), for what they say of the cluster; nil: Voters
	Dir    string  // for etcd's files only, for example DATA/etcd

	ListenPeer   string        // HOST:PORT; default: this node's address in Voters
	ListenClient string        // likewise
	Token        string        // distinguishes clusters on the same hosts; "penstock"
	Heartbeat    time.Duration // interval of the heartbeats of etcd's leader; 100 ms
	Election     time.Duration // without a heartbeat until an election, at least 5 heartbeats; 1 s
	QuotaBytes   int64         // limit of the database, above which nothing can be changed; 2 GiB
	TLS          TLSFiles      // zero: no TLS, and whoever reaches the ports can change everything

	// Older says what the other members know of this node that its data directory should know and does not, and the
	// revision of the row that tells it; empty: nothing. It gets what they have below Prefix, before the member starts.
	// nil: nobody is asked. See older.go.
	Older  func(Testimony) (why string, since int64) `json:"-"`
	Prefix string
	// Enters says why this node must not enter a running cluster with these entries below EntersPrefix; nil: it may. It
	// is asked before the cluster adds or replaces the member: one that ends right after that costs the cluster its
	// majority. nil: it may always.
	Enters       func([]kv.Entry) error `json:"-"`
	EntersPrefix string
	// Anew is the command that sets the member's files aside, for a sentence about files that are damaged.
	Anew string
	// Admit says why a certificate of the authority must not reach the member's ports; nil: each may. It is called in
	// handshakes, on any goroutine.
	Admit func(*x509.Certificate) error `json:"-"`
	// Fatal ends the process after etcd has found its files damaged, instead of a panic or an exit without a word. The
	// error is ErrDirectory, unless etcd could not be ended after a shortage and leads, or its disk has failed and it is
	// the only member. It does not return. nil: as etcd does. Otherwise a shortage (of descriptors, of space) or a disk
	// that fails ends only etcd: see Fault.
	Fatal func(error) `json:"-"`

	// UnsafeNoFsync makes tests fast. After a power cut, a member that ran with it may have forgotten what it promised.
	UnsafeNoFsync bool
	Log           *slog.Logger // nil: slog.Default()
}

const (
	snapshotEntries   = 10_000  // log entries between two snapshots
	catchUpEntries    = 5_000   // log entries that stay for members that lag
	revisionsKept     = "10000" // how far a watch may be behind; older revisions are compacted every five minutes
	reportEvery       = 5 * time.Second
	startRetryPause   = time.Second
	goodbyeTime       = 200 * time.Millisecond // for answers that are on their way at Close
	defaultQuotaBytes = 2 << 30
)

// Member is an etcd member in this process. Its methods are safe for concurrent use.
type Member struct {
	o     MemberOptions
	self  Voter
	tls   *currentTLS
	shown *shown       // nil: etcd reads the files itself
	http  *http.Client // to the other members' peer addresses

	ctx     context.Context // ends at Close
	stop    context.CancelFunc
	started sync.WaitGroup
	ready   chan struct{} // closed when the member serves clients
	done    chan struct{} // closed when run has ended

	phase   cell[string]   // what the member waits for, for the log
	refusal cell[error]    // why the member does not start yet
	kept    cell[string]   // see Kept
	counted cell[int]      // see memberCount; 0: unknown
	apart   cell[[]string] // see Apart
	fault   cell[string]   // see Fault: etcd has stopped
	deaf    cell[string]   // see Fault: a port does not accept

	// mu guards the fields below.
	mu     sync.Mutex
	rpc    *grpc.Server // the server of the clients
	err    error
	before map[string][]Voter // see formerly

	broken chan error // of the etcd that runs: a fatal line that ends only it; one place
	// sockets and fronts are of the etcd that runs. They belong to the goroutine of run, and to who has started etcd.
	sockets *sockets
	fronts  []*front
}

// cell is a value that any goroutine may read and replace.
type cell[T any] struct {
	mu sync.Mutex
	v  T
}

func (c *cell[T]) get() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v
}

func (c *cell[T]) set(v T) (before T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.v = c.v, v
	return before
}

// Start begins a member, and returns once it knows that the member's addresses are free; Ready waits until the member
// serves. The member's directory decides whether it continues, returns after it lost its disk, or begins a new cluster
// with the others (see the package comment).
func Start(o MemberOptions) (*Member, error) {
	o.setDefaults()
	at := slices.IndexFunc(o.Voters, func(v Voter) bool { return v.Name == o.Name })
	if err := o.check(at); err != nil {
		return nil, err
	}
	self := o.Voters[at]
	o.ListenPeer, o.ListenClient = cmp.Or(o.ListenPeer, self.Peer), cmp.Or(o.ListenClient, self.Client)
	tls, err := o.TLS.open()
	if err != nil {
		return nil, err
	}
	for _, address := range []*string{&o.ListenPeer, &o.ListenClient} {
		l, err := net.Listen("tcp", *address)
		if err != nil {
			return nil, fmt.Errorf("etcd: the embedded member cannot listen: free the address or choose other ports: %w", err)
		}
		*address = l.Addr().String() // etcd binds to IP addresses only
		_ = l.Close()
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd: the directory of the embedded member cannot be made: %w", err)
	}
	m := &Member{
		o: o, self: self, ready: make(chan struct{}), done: make(chan struct{}), tls: tls, http: tls.client(),
		broken: make(chan error, 1),
	}
	if m.shown, err = tls.show(); err != nil {
		return nil, err
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	begin := way{cluster: m.initialCluster(nil), state: embed.ClusterStateFlagNew}
	if err := m.config(begin, socketNames[peerFront], socketNames[clientFront]).Validate(); err != nil {
		m.stop()
		m.shown.close()
		return nil, fmt.Errorf("etcd: the embedded member cannot run with these settings: %w", err)
	}
	m.started.Go(m.run)
	return m, nil
}

func (o *MemberOptions) setDefaults() {
	o.Token = cmp.Or(o.Token, "penstock")
	o.Anew = cmp.Or(o.Anew, "penstock rebuild-cluster --rejoin DATA_PATH")
	if o.Peers == nil {
		o.Peers = o.Voters
	}
	o.Heartbeat, o.Election = cmp.Or(o.Heartbeat, 100*time.Millisecond), cmp.Or(o.Election, time.Second)
	o.QuotaBytes, o.Log = cmp.Or(o.QuotaBytes, int64(defaultQuotaBytes)), cmp.Or(o.Log, slog.Default())
}

func (o *MemberOptions) check(at int) error {
	if err := checkVoters(o.Voters); err != nil {
		return err
	}
	switch {
	case at < 0:
		return fmt.Errorf("etcd: %q is not among the voters: only they run a member, the other nodes are clients", o.Name)
	case len(o.Voters) > MaxVoters:
		return fmt.Errorf("etcd: %d voters are more than %d: let the first %d vote", len(o.Voters), MaxVoters, MaxVoters)
	case o.Dir == "":
		return errors.New("etcd: the embedded member needs a directory")
	case o.Heartbeat < time.Millisecond || o.Election < 5*o.Heartbeat || o.Election > 50*time.Second:
		return fmt.Errorf("etcd: an election timeout of %v does not fit a heartbeat of %v: it must be at least five "+
			"heartbeats and at most 50 s", o.Election, o.Heartbeat)
	case !o.TLS.empty() && (o.TLS.CA == "" || o.TLS.Cert == "" || o.TLS.Key == ""):
		return errors.New("etcd: an embedded member with TLS needs all three files: authority, certificate and key")
	}
	return nil
}

// Endpoints returns the client addresses for Dial, this member's first.
func (m *Member) Endpoints() []string { return Endpoints(m.o.Voters, m.o.Name) }

// Ready waits until the member serves clients, which needs a majority. Every 5 s it logs which of the other members do
// not answer. It fails when ctx ends, after Close, and if the member cannot start at all.
func (m *Member) Ready(ctx context.Context) error {
	report := time.NewTicker(reportEvery)
	defer report.Stop()
	for {
		select {
		case <-m.ready:
			return nil
		case <-m.done:
			return cmp.Or(m.Err(), fmt.Errorf("%w: the embedded etcd member was closed before it was ready", kv.ErrClosed))
		case <-ctx.Done():
			if err := m.refusal.get(); err != nil {
				return err
			}
			return fmt.Errorf("etcd: the embedded member is not ready, it waits for %s: start the other nodes in "+
				"cluster-peers; %s: %w", m.phase.get(), wayOut, ctx.Err())
		case <-report.C:
			m.o.Log.Info("the embedded etcd member waits", "for", m.phase.get(), "no answer from", m.absent(ctx),
				"hint", wayOut)
		}
	}
}

// wayOut is what to do if waiting for a majority has no end.
const wayOut = "if the disks or the etcd directories of a majority are lost for good, stop all nodes and run " +
	"penstock rebuild-cluster (operating.md, Lost quorum): no message is lost with the metadata"

// Done returns a channel that is closed when the member has ended: by Close, or by itself.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err returns why the member ended by itself; nil before Done and after Close.
func (m *Member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Close hands the leadership to another member, stops this one and waits for its end. It remains a member of the
// cluster: started again with the same directory, it continues.
func (m *Member) Close() error {
	m.stop()
	m.started.Wait()
	return nil
}

// config has the names of the sockets at which etcd listens.
func (m *Member) config(w way, peerAt, clientAt string) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = m.o.Name, m.o.Dir
	scheme := m.o.TLS.scheme()
	c.ListenPeerUrls, c.AdvertisePeerUrls = urls("unix", peerAt), urls(scheme, m.self.Peer)
	c.ListenClientUrls, c.AdvertiseClientUrls = urls("unix", clientAt), urls(scheme, m.self.Client)
	c.InitialCluster, c.InitialClusterToken, c.ClusterState = w.cluster, m.o.Token, w.state
	c.ForceNewCluster = w.force
	c.TickMs, c.ElectionMs = uint(m.o.Heartbeat.Milliseconds()), uint(m.o.Election.Milliseconds())
	c.SnapshotCount, c.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	c.QuotaBackendBytes = m.o.QuotaBytes
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModeRevision, revisionsKept
	c.EnableGRPCGateway = false // nobody uses its REST interface
	c.UserHandlers = map[string]http.Handler{saysPath: m.says()}
	c.UnsafeNoFsync = m.o.UnsafeNoFsync
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(
		serverLogger(m.o.Log, func() bool { return m.ctx.Err() != nil }, lastHook{&m.o, m.broken}))
	c.ServiceRegister = func(s *grpc.Server) {
		m.mu.Lock()
		m.rpc = s
		m.mu.Unlock()
	}
	if !m.o.TLS.empty() {
		// With this it dials other members. Who dials this one is the fronts' concern.
		c.PeerTLSInfo.TrustedCAFile, c.PeerTLSInfo.CertFile, c.PeerTLSInfo.KeyFile = m.shownTLS()
		// etcd overwrites the infos' own MinVersion with this.
		if c.TlsMinVersion = "TLS1.3"; m.o.TLS.minVersion() < tls.VersionTLS13 {
			c.TlsMinVersion = "TLS1.2"
		}
	}
	return c
}

// absent returns the names of the other members that do not answer.
func (m *Member) absent(ctx context.Context) string {
	var names []string
	for _, v := range m.o.Voters {
		if v.Name != m.o.Name && m.probe(ctx, v).state == silent {
			names = append(names, v.Name+" ("+v.Peer+")")
		}
	}
	return cmp.Or(strings.Join(names, ", "), "nobody")
}
