package etcd

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"penstock/internal/cluster/kv"
)

// Grant implements kv.Store. etcd counts in whole seconds, and its least TTL is one and a half election timeouts: the
// lease lives for ttl or somewhat longer.
func (s *store) Grant(ctx context.Context, ttl time.Duration) (kv.LeaseID, error) {
	// The id is chosen here, so that a repeated attempt finds the previous attempt's lease instead of creating another.
	id := clientv3.LeaseID(rand.Int64N(1<<62) + 1)
	seconds := int64((ttl + time.Second - 1) / time.Second)
	err := s.do(ctx, "a new lease", true, func(ctx context.Context, attempt int) error {
		_, err := s.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: seconds})
		if err = rpctypes.Error(err); attempt > 0 && errors.Is(err, rpctypes.ErrLeaseExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return kv.LeaseID(id), nil
}

// KeepAlive implements kv.Store. Only one call at a time is on its way; a node has few leases.
func (s *store) KeepAlive(ctx context.Context, id kv.LeaseID) (ttl time.Duration, err error) {
	err = s.do(ctx, "extending a lease", true, func(ctx context.Context, _ int) (err error) {
		ttl, err = s.keepAlive.extend(ctx, s, id)
		return err
	})
	return ttl, err
}

func (s *store) Revoke(ctx context.Context, id kv.LeaseID) error {
	return s.do(ctx, "ending a lease", true, func(ctx context.Context, attempt int) error {
		_, err := s.client.Revoke(ctx, clientv3.LeaseID(id))
		if attempt > 0 && errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil // an earlier attempt has revoked it
		}
		return err
	})
}

// keepAliveStream is the stream on which leases are extended. It is kept from one call to the next, because the client
// authenticates a user anew for each stream, which costs the member a tenth of a second of work. (The client's own
// KeepAliveOnce opens a stream per call, and spins while the endpoint refuses connections.)
type keepAliveStream struct {
	turn   chan struct{} // capacity 1, one token: its holder owns the other fields
	stream grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
	cancel context.CancelFunc
}

func newKeepAliveStream() keepAliveStream {
	k := keepAliveStream{turn: make(chan struct{}, 1)}
	k.turn <- struct{}{}
	return k
}

// extend extends one lease once. If that fails or ctx ends, the stream is dropped, and with it an answer that may come
// late.
func (k *keepAliveStream) extend(ctx context.Context, s *store, id kv.LeaseID) (ttl time.Duration, err error) {
	select {
	case <-k.turn:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { k.turn <- struct{}{} }()
	kept := k.stream != nil
	ttl, err = k.exchange(ctx, s, id)
	if err != nil && kept && k.stream == nil && ctx.Err() == nil {
		// An earlier call's stream may have ended with its member, which says nothing about the member in use now.
		ttl, err = k.exchange(ctx, s, id)
	}
	return ttl, err
}

func (k *keepAliveStream) exchange(ctx context.Context, s *store, id kv.LeaseID) (ttl time.Duration, err error) {
	fresh := k.stream == nil
	var own context.Context
	if fresh {
		own, k.cancel = context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	}
	defer context.AfterFunc(ctx, k.cancel)()
	if fresh {
		if k.stream, err = s.leases.LeaseKeepAlive(own, grpc.WaitForReady(true)); err != nil {
			k.drop()
			return 0, err
		}
	}
	// An error of Send only says that the stream has ended; Recv says why.
	_ = k.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	answer, err := k.stream.Recv()
	if err != nil {
		k.drop()
		return 0, err
	}
	if answer.TTL <= 0 {
		return 0, rpctypes.ErrLeaseNotFound
	}
	return time.Duration(answer.TTL) * time.Second, nil
}

func (k *keepAliveStream) drop() {
	k.cancel()
	k.stream = nil
}
