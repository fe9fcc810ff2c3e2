package peer

import (
	"net"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
)

// asking returns the options of another process of node 1 that wants to register.
func asking(edits ...func(*Options)) Options {
	o := Options{Self: Node{ID: 1, Name: "n1", Store: storeOf(1), Boot: nextBoot()}, Cluster: testCluster}
	for _, e := range edits {
		e(&o)
	}
	return o
}

// A process of a node's name learns which process answers at an address, and that one says once that another tried. The
// connections of the one that lives go on.
func TestAsk(t *testing.T) {
	a, b := start(t, 1, ""), start(t, 2, "")
	meet(a, b)
	connected(t, a, b)
	for range 3 {
		if got, err := Ask(t.Context(), asking(), a.node.Address); err != nil || got != (Answer{Boot: a.node.Boot}) {
			t.Errorf("its own name answers %+v, %v", got, err)
		}
	}
	until(t, "it says so", func() bool {
		return a.logs.count("another process tried to start under this node's name") == 1
	})
	if got := a.logs.count("was refused"); got != 0 {
		t.Errorf("%d lines about connections that were refused", got)
	}
	if got, err := Ask(t.Context(), asking(), b.node.Address); err == nil || got != (Answer{}) {
		t.Errorf("a node of another name answers %+v, %v", got, err)
	}
	if !a.Connected(2) || a.ups(2) != 1 {
		t.Error("the connection of the one that lives has ended")
	}
	a.Close()
	until(t, "nobody is there", func() bool {
		got, err := Ask(t.Context(), asking(), a.node.Address)
		return err != nil && got == Answer{Nobody: true}
	})
}

// Whoever does not prove that it belongs to the cluster does not learn who is there, and what does not answer as a node
// of the cluster counts as silent.
func TestAskWithoutProof(t *testing.T) {
	secret := withSecrets(holding(netproto.Secret{1}))
	a := start(t, 1, "", secret)
	for name, o := range map[string]Options{
		"without the secret":   asking(),
		"with another one":     asking(withSecrets(holding(netproto.Secret{2}))),
		"of another cluster":   asking(secret, func(o *Options) { o.Cluster = uuid.New() }),
		"with the node's boot": asking(secret, func(o *Options) { o.Self.Boot = a.node.Boot }),
	} {
		if got, err := Ask(t.Context(), o, a.node.Address); err == nil || got != (Answer{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := Ask(t.Context(), asking(secret), a.node.Address); err != nil || got.Boot != a.node.Boot {
		t.Errorf("with the secret: %+v, %v", got, err)
	}
}

// A listener that nobody serves is silent, and is not waited for longer than a probe may take.
func TestAskSilence(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	began := time.Now()
	got, err := Ask(t.Context(), asking(), ln.Addr().String())
	if err == nil || got != (Answer{}) {
		t.Errorf("silence answers %+v, %v", got, err)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it took %v", took)
	}
}
