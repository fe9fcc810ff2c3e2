package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"penstock/internal/cluster/kv"
)

// MaxPageEntries is the largest number of entries that List requests at once.
const MaxPageEntries = 4096

// Options configure a client. Zero values mean the defaults.
type Options struct {
	TLS      TLSFiles
	Username string // empty: no authentication
	Password string

	DialTimeout    time.Duration // how long Dial waits for a majority's answer, with a log line each RequestTimeout; 5 s
	RequestTimeout time.Duration // the longest wait of any method except Watch; 5 s
	// AttemptTimeout is how long one endpoint may take before the next one is asked, and how long a transaction waits
	// for its answer before its outcome counts as unknown; 1 s.
	AttemptTimeout time.Duration
	ProgressEvery  time.Duration // silence after which a watch asks whether the member is there; 1 s
	StallAfter     time.Duration // how long that answer may take; 2 s

	// Learn makes the client use the addresses, too, that the members announce, so that it finds members that move. It is
	// for members whose announced addresses are those that clients dial.
	Learn bool

	// Opened is called by Dial before it waits for an answer: from then on ReloadTLS and SetPassword may be called,
	// also while Dial waits. nil: nobody wants to know.
	Opened func(kv.Store)

	Log *slog.Logger // nil: slog.Default()
}

func (o Options) withDefaults() Options {
	o.DialTimeout = cmp.Or(o.DialTimeout, 5*time.Second)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 5*time.Second)
	o.AttemptTimeout = cmp.Or(o.AttemptTimeout, time.Second)
	o.ProgressEvery = cmp.Or(o.ProgressEvery, time.Second)
	o.StallAfter = cmp.Or(o.StallAfter, 2*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	return o
}

// store implements kv.Store. All calls and watches go to endpoints[current].
type store struct {
	o         Options
	given     []string // endpoints of Dial
	tls       *currentTLS
	password  atomic.Pointer[string]
	client    *clientv3.Client
	dialed    atomic.Bool // client is set
	leases    pb.LeaseClient
	keepAlive keepAliveStream
	ctx       context.Context // ends at Close
	stop      context.CancelFunc
	done      sync.WaitGroup
	watches   atomic.Int64           // numbers the watch streams
	term      atomic.Uint64          // newest raft term heard of, from any member
	full      atomic.Pointer[string] // see Full

	mu        sync.Mutex // guards the following
	endpoints []string   // those given, then those learned
	current   int        // index of the endpoint in use
}

// Dial connects to etcd at the endpoints (HOST:PORT or URL) and returns when a majority has answered. It prefers the
// first endpoint, and uses the others, in order, when it has to. It returns kv.ErrUnavailable if no majority answers in
// time.
func Dial(ctx context.Context, endpoints []string, o Options) (kv.Store, error) {
	o = o.withDefaults()
	if len(endpoints) == 0 {
		return nil, errors.New("etcd: no endpoint is given: name at least one HOST:PORT")
	}
	tls, err := o.TLS.open()
	if err != nil {
		return nil, err
	}
	s := &store{o: o, tls: tls, keepAlive: newKeepAliveStream()}
	s.password.Store(&o.Password)
	for _, e := range endpoints {
		if !strings.Contains(e, "://") {
			e = o.TLS.scheme() + "://" + e
		}
		s.given = append(s.given, e)
	}
	s.endpoints = s.given
	s.ctx, s.stop = context.WithCancel(context.Background())
	dial := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second,
			},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithChainUnaryInterceptor(s.withPassword),
	}
	if c := tls.credentials(); c != nil {
		dial = append(dial, grpc.WithTransportCredentials(c))
	}
	if o.Opened != nil {
		o.Opened(s)
	}
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: s.endpoints, DialTimeout: o.DialTimeout, Username: o.Username, Password: o.Password,
		// gRPC raises shorter times to 10 s, and members refuse clients that ping more often than every 5 s. Stalled
		// calls are noticed earlier, by their own timeouts.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		MaxUnaryRetries: 2, // the second renews a token; the rest is done here
		Logger:          clientLogger(o.Log),
		DialOptions:     dial,
	})
	if err != nil { // only a user's authentication can fail here
		s.stop()
		if unanswered(err) {
			return nil, s.failed("the authentication", err, "nothing was changed")
		}
		return nil, s.answered("the authentication", err)
	}
	s.dialed.Store(true)
	s.client.SetEndpoints(s.endpoints[0])
	s.leases = pb.NewLeaseClient(s.client.ActiveConnection())
	s.done.Go(s.keepConnected)
	s.done.Go(s.look)
	if err := s.greet(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// greet waits for a linearizable read, which needs a majority, and checks the member's version.
func (s *store) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.DialTimeout)
	defer cancel()
	for {
		err := s.do(ctx, "the first read", true, func(ctx context.Context, _ int) error {
			err := s.ping(ctx)
			if errors.Is(err, rpctypes.ErrPermissionDenied) {
				return nil // the member answers; rights to some keys are enough
			}
			return err
		})
		if err == nil {
			break
		}
		if !errors.Is(err, kv.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		s.o.Log.Warn("the metadata store does not answer: this node waits for a majority of its members", "error", err)
	}
	status, err := s.client.Status(ctx, s.endpointInUse())
	if err == nil && older(status.Version, 3, 5, 8) {
		return fmt.Errorf(
			"etcd: %s runs version %s, which may tell a watch of progress before its events: use 3.5.8 or newer",
			s.endpointInUse(), status.Version)
	}
	return nil // not checked if the user may not ask: the requirement is documented
}

func older(version string, major, minor, patch int) bool {
	var v [3]int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return false
	}
	return slices.Compare(v[:], []int{major, minor, patch}) < 0
}

// List implements kv.Store. Pages after the first are read at the first page's revision.
func (s *store) List(ctx context.Context, prefix string) ([]kv.Entry, int64, error) {
	for {
		entries, revision, err := s.list(ctx, prefix)
		if !errors.Is(err, kv.ErrCompacted) {
			return entries, revision, err
		}
		// So many changes came between two pages that the revision was compacted: start again.
	}
}

func (s *store) list(ctx context.Context, prefix string) (entries []kv.Entry, revision int64, err error) {
	from, end := cmp.Or(prefix, "\x00"), clientv3.GetPrefixRangeEnd(prefix)
	for {
		options := []clientv3.OpOption{
			clientv3.WithRange(end), clientv3.WithLimit(MaxPageEntries), clientv3.WithRev(revision),
		}
		var page *clientv3.GetResponse
		err = s.do(ctx, "a read of "+strconv.Quote(prefix), true, func(ctx context.Context, _ int) (err error) {
			page, err = s.client.Get(ctx, from, options...)
			return err
		})
		if err != nil {
			return nil, 0, err
		}
		s.heardOf(page.Header.RaftTerm)
		if revision == 0 {
			revision = page.Header.Revision
		}
		entries = append(entries, entriesOf(page.Kvs)...)
		if !page.More {
			return entries, revision, nil
		}
		from = entries[len(entries)-1].Key + "\x00"
	}
}

// Txn implements kv.Store. A transaction whose outcome is unknown may be applied even later than a read that did not
// find it: only its conds make that harmless.
func (s *store) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	compares := make([]clientv3.Cmp, len(conds))
	for i, c := range conds {
		compares[i] = clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.ModRevision)
	}
	writes := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		switch {
		case op.Delete:
			writes[i] = clientv3.OpDelete(op.Key)
		case op.Lease != 0:
			writes[i] = clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease)))
		default:
			writes[i] = clientv3.OpPut(op.Key, string(op.Value))
		}
	}
	var answer *clientv3.TxnResponse
	err := s.do(ctx, "a transaction", false, func(ctx context.Context, _ int) (err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer time.AfterFunc(leaderDoubt, func() { cancel(s.leaderLost(ctx)) }).Stop()
		answer, err = s.client.Txn(ctx).If(compares...).Then(writes...).Commit()
		if len(writes) > 0 && (err != nil || answer.Succeeded) {
			s.noteRoom(err)
		}
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return cause
		}
		return err
	})
	if err != nil {
		return false, 0, err
	}
	s.heardOf(answer.Header.RaftTerm)
	return answer.Succeeded, answer.Header.Revision, nil
}

// Close implements kv.Store. It ends waiting calls and watches.
func (s *store) Close() error {
	s.stop()
	err := s.client.Close()
	s.done.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
