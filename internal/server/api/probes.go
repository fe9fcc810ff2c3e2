package api

import (
	"encoding/json"
	"net/http"

	"penstock/internal/node/health"
	"penstock/internal/server/web"
)

// Probes are the paths that a supervisor asks. They are served to everybody, and also without TLS where TLS is
// required: supervisors send no secrets, and the answers have none.
//
//	/livez     503 only if a restart would cure what is wrong
//	/readyz    503 if clients should be sent elsewhere; with ?verbose, one line for each check
//	/startupz  503 until the node has recovered its data and joined its cluster, with the progress
const (
	livePath    = "/livez"
	readyPath   = "/readyz"
	startupPath = "/startupz"
	HealthPath  = "/health" // the whole health.Verdict as JSON; 503 if something is wrong
)

// IsProbe says whether path is one of the probes.
func IsProbe(path string) bool { return path == livePath || path == readyPath || path == startupPath }

// ServeProbe answers a probe.
func ServeProbe(w http.ResponseWriter, r *http.Request, v *health.Verdict) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		web.WriteError(w, web.Fail(405, "METHOD_NOT_ALLOWED"))
		return
	}
	ok, text := true, "ok"
	switch r.URL.Path {
	case livePath:
		if ok = v.Live; !ok {
			text = v.Why + ": a restart is needed"
		}
	case readyPath:
		if ok = v.Ready; !ok || r.URL.Query().Has("verbose") {
			text = v.Verbose("readyz")
		}
	case startupPath:
		if c := &v.Checks[0]; !c.OK { // the first check is that of the start
			ok, text = false, c.Says
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text))
}

// ServeVerdict sends the whole verdict as JSON.
func ServeVerdict(w http.ResponseWriter, v *health.Verdict) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if !v.Healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(v) // an error means that the client is gone
}

// serveHealth answers /health.
func (s *Service) serveHealth(w http.ResponseWriter, _ *http.Request) {
	v := s.engine.Verdict()
	ServeVerdict(w, &v)
}

// Probe answers a probe from the engine's verdict.
func (s *Service) Probe(w http.ResponseWriter, r *http.Request) {
	v := s.engine.Verdict()
	ServeProbe(w, r, &v)
}
