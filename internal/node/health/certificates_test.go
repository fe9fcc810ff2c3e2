package health

import (
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/replicate"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// A certificate is spoken of from 30 days before its end on, and is trouble when nobody takes it: after its end, and
// before its beginning, which may be the fault of the clock.
func TestCertificates(t *testing.T) {
	const day = 24 * time.Hour
	for _, tc := range []struct {
		from, until time.Duration // from noon
		want        Validity
		says        string
	}{
		{-day, 31 * day, CertificateValid, ""},
		{-day, 30 * day, CertificateEnding, "ends in 30 days, at 2026-12-29 12:00 UTC, and is refused then: put a new one"},
		{-day, time.Hour, CertificateEnding, "ends in 1h0m0s, at 2026-11-29 13:00 UTC"},
		{-day, 0, CertificateEnded, "ended 0.0s ago"},
		{-9 * day, -3 * day, CertificateEnded, "the certificate c.pem of tls-cert ended 3 days ago, at 2026-11-26"},
		{time.Hour, day, CertificateNotYet, "is not valid before 2026-11-29 13:00 UTC, and this machine's clock says"},
	} {
		c := Certificate{"tls-cert", "c.pem", noon.Add(tc.from), noon.Add(tc.until)}
		if got := c.At(noon); got != tc.want || !strings.Contains(c.Words(noon), tc.says) || tc.says == "" &&
			c.Words(noon) != "" {
			t.Errorf("%v to %v: %d, want %d: %q, want %q", tc.from, tc.until, got, tc.want, c.Words(noon), tc.says)
		}
		v := Judge(&Facts{Certificates: []Certificate{c}, Wall: noon})
		if v.Healthy != (tc.want < CertificateNotYet) || !v.Ready || !v.Serves || !strings.Contains(v.Health, tc.says) {
			t.Errorf("%v to %v: %+v", tc.from, tc.until, v)
		}
		ending, refused := CountCertificates([]Certificate{c}, noon)
		if (ending == 1) != (tc.want == CertificateEnding) || (refused == 1) != (tc.want >= CertificateNotYet) {
			t.Errorf("%v to %v: %d end, %d are refused", tc.from, tc.until, ending, refused)
		}
	}
}

// A node is said to be dead because of its certificate if the one that it showed last is not valid now.
func TestDeadByItsCertificate(t *testing.T) {
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		shown *Certificate
		live  bool
		says  string // "": nothing of certificates
	}{
		"ended":         {&Certificate{From: noon.Add(-9 * day), Until: noon.Add(-day)}, false, "ended at 2026-11-28 12:00"},
		"not yet":       {&Certificate{From: noon.Add(day), Until: noon.Add(9 * day)}, false, "not valid before 2026-11-30"},
		"valid":         {&Certificate{From: noon.Add(-day), Until: noon.Add(day)}, false, ""},
		"none is known": {nil, false, ""},
		"it is live":    {&Certificate{From: noon.Add(-9 * day), Until: noon.Add(-day)}, true, ""},
	} {
		s := &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{
			1: {ID: 1, Name: "n1", Live: true}, 2: {ID: 2, Name: "n2", Live: tc.live},
		}}
		v := Trusting(1)
		v.Wall, v.Shown = noon, map[replicate.NodeID]*Certificate{2: tc.shown}
		says := Judge(&Facts{Cluster: Look(s, v)}).Health
		if strings.Contains(says, "certificate") != (tc.says != "") || !strings.Contains(says, tc.says) ||
			!tc.live && !strings.Contains(says, "node n2 is dead") {
			t.Errorf("%s: %s", name, says)
		}
	}
}
