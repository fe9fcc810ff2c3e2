package server

import (
	"slices"

	"penstock/internal/descriptors"
	"penstock/internal/server/listen"
	"penstock/internal/server/lookup"
	"penstock/internal/server/native"
	"penstock/internal/shares"
)

// Change takes over from o, which Check has accepted, what of the options may change while the node serves: Settings,
// with the limits that the other ports have of them, LookupdTCPAddresses, InactiveProducerTimeout, AllowedHosts,
// OpenPages, the limits of the audit and of metrics, Statsd, and how auth servers are asked. Connections that are open
// stay, and keep what they have been told. The engine's share of tokens has changed before, if it has. Any goroutine
// may call it, and repeat it.
func (s *Server) Change(o Options) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := o.setDefaults(); err != nil {
		return err
	}
	if !slices.Equal(o.LookupdTCPAddresses, s.lookupds) { // PUT /config holds on while the setting is the same
		if err := s.lookups.SetNsqlookupds(o.LookupdTCPAddresses); err != nil {
			return err
		}
		s.lookupds = o.LookupdTCPAddresses
	}
	if err := s.auth.Change(o.Auth); err != nil {
		return err
	}
	s.settings.Store(&o.Settings)
	s.strangers.Limit(unproven(o.MaxStrangers, descriptors.Limit()))
	s.known.Resize(int64(descriptors.ForClients(o.MaxConnections)), s.engine.Catalog().TokenShare())
	s.largest = max(s.largest, o.LargestCommand()) // open connections may still send it
	s.received.Change(&shares.LargeInput, o.MaxLargeInputBytes, s.largest)
	s.changeHTTP(&o)
	var lookups lookup.Options
	o.limitLookups(&lookups)
	s.lookups.Change(&lookups)
	if s.native != nil {
		var n native.Options
		o.limitNative(&n)
		s.native.Change(n)
	}
	if s.certs != nil {
		s.certs.gate.Limit(o.MaxHandshakes)
	}
	s.audit.Limit(o.MaxAuditEntries, o.MaxAuditBytes)
	s.metrics.Limit(o.MaxMetricSeries)
	s.pushes.Change(o.Statsd)
	return nil
}

// changeHTTP is Change for the HTTP listeners.
func (s *Server) changeHTTP(o *Options) {
	listen.Limit(s.httpLn, o.MaxConnections)
	listen.Limit(s.httpsBound, o.MaxConnections)
	s.gate.Allow(o.AllowedHosts)
	if f := s.opts.Front; f != nil {
		listen.Limit(f.bound, o.MaxConnections)
		if f.gate != nil {
			f.gate.Allow(o.AllowedHosts)
		}
	}
	s.guard.OpenPages(o.OpenPages)
}
