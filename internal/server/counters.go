package server

import (
	"time"

	"penstock/internal/server/listen"
	"penstock/internal/server/metrics"
)

// meter returns the counters for /metrics.
func (s *Server) meter() metrics.ServerMeter {
	nsq, http := s.nsq.Meter(), s.api.Meter()
	m := metrics.ServerMeter{
		AuthFailures: http.AuthFailures + nsq.AuthFailures, HTTPPanics: s.gate.Panics(),
		AuditNotWritten: s.audit.NotWritten(), KnownConnections: s.known.Used(), LogLinesLeftOut: s.sparing.LeftOut(),
		Refused: s.publishes.Refused(), Requests: http.Requests,
		Connections: map[string]int{
			"nsq": nsq.Connections, "http": listen.Open(s.httpLn),
			"https": listen.Open(s.httpsBound),
		},
		LargeInputBytes: s.received.Used(), NSQ: nsq, Turns: http.Turns,
	}
	m.CredentialsStale = s.stale.Load()
	silent, held := s.auth.Silence(time.Now())
	if s.certs != nil {
		m.Handshakes = s.certs.gate.Counts()
	}
	m.AuthSilentSeconds, m.AuthHeld = silent.Seconds(), held
	m.Publishes = map[string]*metrics.Durations{
		"nsq": &s.publishes.NSQ, "http": &s.publishes.HTTP, "native": &s.publishes.Native,
	}
	m.Connections["lookup"], m.Connections["lookup_tcp"] = s.lookups.Connections()
	if s.native != nil {
		m.Native = s.native.Meter()
	}
	m.Connections["native"] = m.Native.Connections
	m.AuthFailures += m.Native.AuthFailures
	return m
}
