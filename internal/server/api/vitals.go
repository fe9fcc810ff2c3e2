package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// VitalsList is the answer of /vitals.
type VitalsList struct {
	Nodes   []NodeVitals `json:"nodes"`
	Missing []Missing    `json:"missing"`
}

// NodeVitals is what a node says of its process and its machine.
type NodeVitals struct {
	Node string `json:"node"`
	Vitals
}

// Vitals is NodeVitals without the name. A number that is 0 is not known.
type Vitals struct {
	Hostname      string    `json:"hostname"`
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	DiskFreeBytes int64     `json:"disk_free_bytes"` // what the process may still write for its data directory
	MemoryBytes   int64     `json:"memory_bytes"`    // that the process has in the machine's memory
}

func (s *Service) serveVitals(r *http.Request, _ url.Values) (any, error) {
	out := VitalsList{Nodes: []NodeVitals{}}
	out.Missing = s.askAll(r.Context(), question{What: askVitals}, func(node string, text []byte) error {
		v := NodeVitals{Node: node}
		err := json.Unmarshal(text, &v.Vitals)
		out.Nodes = append(out.Nodes, v)
		return err
	})
	return out, nil
}

// vitalsHere returns those of this node. A file system that hangs holds up one goroutine at most; the others go on
// without the free space.
func (s *Service) vitalsHere() Vitals {
	v := Vitals{
		Hostname: s.opts.Hostname, Version: s.opts.Version, Started: s.opts.Started.UTC(),
		UptimeSeconds: time.Since(s.opts.Started).Seconds(), MemoryBytes: residentBytes(),
	}
	if s.statting.TryLock() {
		defer s.statting.Unlock()
		v.DiskFreeBytes, _ = s.engine.DiskFreeBytes() // 0 if it cannot be known, as the field says
	}
	return v
}

// residentBytes returns how much memory the process has; 0 if the system does not say it.
func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text)) // in pages: the whole size, then what is resident
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
