package nsq

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"slices"

	"penstock/internal/server/stats"
)

// String identifies the connection in the list of messages in flight.
func (c *conn) String() string {
	set := c.set.Load()
	if set.clientID == "" {
		return c.remote
	}
	return set.clientID + " " + c.remote
}

// MarshalJSON encodes the description of the client that travels to the leaders with its subscription, for their
// /stats.
func (c *conn) MarshalJSON() ([]byte, error) {
	cs := c.stats("")
	cs.PubCounts = nil
	return json.Marshal(cs)
}

func (c *conn) Describe() stats.Client { return c.stats("") }

// stats describes the connection as a producer. Only publishes to topic are listed; "" lists all.
func (c *conn) stats(topic string) stats.Client {
	set := c.set.Load()
	cs := stats.Client{
		ClientID: set.clientID, Hostname: set.hostname, UserAgent: set.userAgent, Version: "V2",
		RemoteAddress: c.remote, State: stats.StateInit, ConnectTime: c.started.Unix(), SampleRate: set.sampleRate,
		Started: c.started,
	}
	c.link.Load().stats(&cs)
	if l := c.login.Load(); l != nil {
		cs.Authed, cs.AuthIdentity, cs.AuthIdentityURL = true, l.who.Name(), l.who.URL()
	}
	c.targetsMu.Lock()
	for name, t := range c.targets {
		if n := t.published.Load(); n > 0 && (topic == "" || topic == name) {
			cs.PubCounts = append(cs.PubCounts, stats.PubCount{Topic: name, Count: n})
		}
	}
	c.targetsMu.Unlock()
	slices.SortFunc(cs.PubCounts, func(a, b stats.PubCount) int { return cmp.Compare(a.Topic, b.Topic) })
	return cs
}

func (l *link) stats(cs *stats.Client) {
	cs.Deflate = l.compression == compressDeflate
	cs.Snappy = l.compression == compressSnappy
	if l.tls == nil {
		return
	}
	cs.TLS = true
	cs.CipherSuite = tls.CipherSuiteName(l.tls.CipherSuite)
	cs.TLSVersion = "TLS1.2"
	if l.tls.Version == tls.VersionTLS13 {
		cs.TLSVersion = "TLS1.3"
	}
	cs.NegotiatedProtocol = l.tls.NegotiatedProtocol
	cs.NegotiatedIsMutual = true // always, since NPN is gone
}

// Publishers describes the open connections that have published to topic; "": to any.
func (s *Server) Publishers(topic string) (out []stats.Client) {
	s.each(func(c *conn) {
		if cs := c.stats(topic); len(cs.PubCounts) > 0 {
			if consumer := c.consumer.Load(); consumer != nil {
				cs.Consume(consumer.Counts())
			}
			out = append(out, cs)
		}
	})
	return out
}

// CountProducers adds to counts how many open connections have published to each topic.
func (s *Server) CountProducers(counts map[string]int) {
	s.each(func(c *conn) {
		c.targetsMu.Lock()
		for name, t := range c.targets {
			if t.published.Load() > 0 {
				counts[name]++
			}
		}
		c.targetsMu.Unlock()
	})
}
