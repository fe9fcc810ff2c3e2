package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	portsEvery   = 2 * time.Second // a member asks itself
	portsRounds  = 3               // questions in a row without an answer, until that is a fault
	portsTimeout = 2 * time.Second
)

// watchPorts runs on its own goroutine while the member serves. It asks the member at its own ports, as others do.
func (m *Member) watchPorts(ctx context.Context) {
	ports := []struct{ who, at, path string }{
		{"members", m.o.ListenPeer, "/members"}, {"clients", m.o.ListenClient, saysPath},
	}
	missed := make([]int, len(ports))
	for pause(ctx, portsEvery) {
		deaf := ""
		for i, p := range ports {
			err := m.askSelf(ctx, p.at, p.path)
			if missed[i]++; err == nil {
				missed[i] = 0
			}
			if missed[i] >= portsRounds {
				deaf = fmt.Sprintf("the port of the embedded etcd on this node for %s, %s, does not answer the node itself (%v): "+
					"other nodes do not reach the member; the messages are unharmed; if this lasts, restart the node", p.who, p.at,
					err)
			}
		}
		m.setDeaf(deaf)
	}
	m.setDeaf("") // it does not serve any more, and who has stopped it says why
}

// setDeaf logs what has changed.
func (m *Member) setDeaf(why string) {
	switch before := m.deaf.set(why); {
	case why != "" && before == "":
		m.o.Log.Error("the embedded etcd member is not reached", "why", why)
	case why == "" && before != "":
		m.o.Log.Info("the embedded etcd member is reached again")
	}
}

// askSelf asks at an address at which this member listens, by the name that others use.
func (m *Member) askSelf(ctx context.Context, at, path string) error {
	name, _, _ := net.SplitHostPort(m.self.Peer)
	t := &http.Transport{DisableKeepAlives: true}
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		config := m.tls.now.Load().config.Clone()
		config.ServerName = name
		return (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
	}
	answer, _, err := fetch(ctx, &http.Client{Timeout: portsTimeout, Transport: t}, m.o.TLS.scheme()+"://"+at+path)
	if answer != nil && answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return err
}
