package etcd

import (
	"context"
	"testing"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/tests/support/kvtest"
)

// The embedded cluster, each client at another member. It keeps its leader also on a busy machine: what is unknown
// after a change of the leader is not what these tests are about.
func TestConformanceEmbedded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.heartbeat, c.election = leaseTTL/15, leaseTTL*2/3 // longer ones would make etcd lengthen the leases
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	conformance(t, c)
}

// leaseTTL is of the leases of these tests.
const leaseTTL = 3 * time.Second

// An etcd that somebody else runs, reached by URL and with TLS.
func TestConformanceExternal(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tls = certificates(t)
	c.start(0)
	c.ready(0)
	conformance(t, c)
}

func conformance(t *testing.T, c *cluster) {
	kvtest.Run(t, kvtest.Backend{
		Open: func(t *testing.T, clients int) []kv.Store {
			stores := make([]kv.Store, clients)
			for i := range stores {
				v := c.voters[i%len(c.voters)]
				o := Options{TLS: c.tls, AttemptTimeout: enough, RequestTimeout: enough}
				stores[i] = dial(t, []string{c.tls.scheme() + "://" + v.Client}, o)
			}
			return stores
		},
		Compact: func(t *testing.T) {
			client, ctx := admin(t, c, 0), within(t, enough)
			answer, err := client.Get(ctx, "x")
			if err == nil {
				_, err = client.Compact(context.WithoutCancel(ctx), answer.Header.Revision)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		LeaseTTL: leaseTTL,
	})
}
