package node

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/platform"
	"penstock/internal/node/remote"
)

// clockHost is a machine whose clock of leases is set by the test.
type clockHost struct {
	*platform.Machine
	awake  atomic.Int64 // ns
	hidden atomic.Int64 // ns that only ReadAwake notices
}

func (h *clockHost) Awake() time.Duration { return time.Duration(h.awake.Load()) }

func (h *clockHost) ReadAwake() { h.awake.Add(h.hidden.Swap(0)) }

func (h *clockHost) pass(d time.Duration) { h.awake.Add(int64(d)) }

func newClockHost() *clockHost { return &clockHost{Machine: platform.NewMachine()} }

// F9: a lease that was given before the machine stood still is over when the machine goes on, for the very first
// question about it. Mono does not count the time in which the machine stood still; Awake does.
func TestLeaseEndsInSleep(t *testing.T) {
	h := newClockHost()
	cn := bareNodeOn(h)
	cn.Extend(cn.Now() + int64(2500*time.Millisecond))
	if h.pass(2 * time.Second); !cn.Leased() {
		t.Error("the lease ended early")
	}
	if h.pass(time.Second); cn.Leased() {
		t.Error("the machine stood still for longer than its lease, and the node goes on to serve")
	}
	until := cn.leaseClock().Add(3 * time.Second)
	if cn.Extend(int64(until.Sub(cn.began))); !cn.Leased() {
		t.Error("there is a new lease")
	}
}

// emptyStore is a metadata store without content, of which nothing else may be requested.
type emptyStore struct{ meta.Store }

func (emptyStore) Snapshot() *meta.Snapshot { return &meta.Snapshot{} }

// The machine stood still, and its wall clock was set back by the same time: the next tick notices that.
func TestTicksReadTheBootClock(t *testing.T) {
	h := newClockHost()
	cn := bareNodeOn(h)
	cn.Rows = emptyStore{}
	cn.Ctx, cn.cancel = context.WithCancel(t.Context())
	cn.forward = cn.newForwarder()
	cn.Net = new(platform.Network) // without connections
	cn.remotes = remote.New(remote.Env{Host: h, Peers: &cn.peers, Lease: cn, Level: cn.e.Level})
	cn.Extend(cn.Now() + int64(3*time.Second))
	h.hidden.Store(int64(time.Hour))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cn.runTicker()
	}()
	for end := time.Now().Add(20 * time.Second); cn.Leased(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("an hour of sleep is not noticed, and the lease is believed")
			break
		}
	}
	cn.cancel()
	<-ended
}
