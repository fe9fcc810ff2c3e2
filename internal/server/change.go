package server

import (
	"slices"

	"penstock/internal/descriptors"
	"penstock/internal/server/listen"
)

// Change takes over from o, which Check has accepted, what of the options may change while the node serves: Settings,
// with the limits that the other ports have of them, LookupdTCPAddresses, and how often statsd is told. Connections
// that are open stay, and keep what they have been told. The engine's share of tokens has changed before, if it has.
// Any goroutine may call it, and repeat it.
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
	s.settings.Store(&o.Settings)
	strangers := unproven(o.MaxStrangers, descriptors.Limit())
	s.strangers.Limit(strangers)
	s.known.Resize(int64(descriptors.ForClients(o.MaxConnections)), s.engine.Catalog().TokenShare())
	listen.Limit(s.httpLn, o.MaxConnections)
	listen.Limit(s.httpsBound, o.MaxConnections)
	if f := s.opts.Front; f != nil {
		listen.Limit(f.bound, o.MaxConnections)
	}
	s.lookups.Limit(o.MaxConnections)
	if s.native != nil {
		s.native.Limit(o.MaxConnections, strangers)
	}
	if s.pushes != nil {
		s.pushes.Every(o.Statsd.Interval)
	}
	return nil
}
