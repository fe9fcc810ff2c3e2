package etcd

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"penstock/internal/cluster/kv"
)

// withPassword puts the password that holds now into each request for a token: etcd's client knows only the one that it
// began with.
func (s *store) withPassword(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if _, ok := req.(*pb.AuthenticateRequest); ok && ctx.Value(proposed{}) == nil {
		req = &pb.AuthenticateRequest{Name: s.o.Username, Password: *s.password.Load()}
	}
	return next(ctx, method, req, reply, conn, opts...)
}

// proposed marks the context of a request with a password that does not hold yet.
type proposed struct{}

// SetPassword makes a store of Dial prove another password from now on, if etcd takes it. After an error the old one
// holds.
func SetPassword(ctx context.Context, s kv.Store, password string) error {
	c, ok := s.(*store)
	if !ok || c.o.Username == "" || password == *c.password.Load() {
		return nil
	}
	if !c.dialed.Load() {
		return fmt.Errorf("etcd: no endpoint has taken the first password of %s yet; the new one is tried again",
			c.o.Username)
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, proposed{}, true), c.o.RequestTimeout)
	defer cancel()
	_, err := pb.NewAuthClient(c.client.ActiveConnection()).Authenticate(ctx,
		&pb.AuthenticateRequest{Name: c.o.Username, Password: password})
	switch err = rpctypes.Error(err); {
	case err == nil, errors.Is(err, rpctypes.ErrAuthNotEnabled):
		c.password.Store(&password)
		return nil
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd: %s does not take the new password of %s; it is tried again", c.endpointInUse(), c.o.Username)
	}
	return fmt.Errorf("etcd: %s could not be asked whether it takes the new password of %s; it is tried again: %w",
		c.endpointInUse(), c.o.Username, err)
}
