package api

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/server/history"
	"penstock/internal/server/lookup"
	"penstock/internal/server/metrics"
	"penstock/internal/server/nsq"
	"penstock/internal/server/publish"
	"penstock/internal/server/stats"
	"penstock/internal/server/web"
	"penstock/internal/shares"
)

// Options are what a Service needs of its node.
type Options struct {
	Settings *atomic.Pointer[nsq.Settings] // those of now, which requests obey as well, and /info tells

	Guard          *Guard // decides who may do what
	Lookups        *lookup.Service
	Metrics        *metrics.Collector
	Stats          *stats.Collector
	Publishes      *publish.Counts
	Received       *shares.Budget // bodies that have not wholly arrived: see MaxLargeInputBytes
	ClusterHandler http.Handler   // serves /cluster/; nil on a single node

	Version           string
	Hostname          string
	BroadcastAddress  string // the host to which clients should connect
	TCPPort, HTTPPort int    // that clients are told; 0: off
	Started           time.Time

	DataPath   string // the data directory, which has the console's history; empty: it is in memory
	BackupPath string // the directory below which POST /backup may write; empty: anywhere on the machine

	Logger   *slog.Logger
	LogLevel *slog.LevelVar // set by PUT /config/log_level

	// Reload looks at the files of credentials and at the settings for POST /reload, and says what came of each; nil:
	// there are none. Any goroutine may call it.
	Reload func() *Reload
	// ConfigValues answers GET /config/<name> for options other than the two that can be set; nil: no others.
	ConfigValues func(name string) (value any, ok bool)
	ConfigList   func() []Setting // of GET /config; nil: it is empty
}

// Service serves nsqd's HTTP API, ours and the console. It keeps what the console shows of the past, and answers
// what other nodes ask. Its methods are safe for concurrent use; what changes in it has locks of its own.
type Service struct {
	*Guard
	opts     Options
	handler  http.Handler
	turns    turns
	counts   requestCounts
	deleted  web.Deletions
	pasts    [2]*past
	history  *history.Log // of pasts, that of the last minutes
	statting sync.Mutex   // held while a goroutine asks the file system; see vitalsHere
}

// New returns a Service for the node of the guard. It serves requests as soon as Handler has them; the caller runs
// Remember.
func New(o Options) *Service {
	s := &Service{Guard: o.Guard, opts: o, pasts: newPasts()}
	s.turns = turns{web.NewTurns(1), web.NewTurns(2), web.NewTurns(1)}
	s.history = s.past(false).Log
	s.handler = s.counted(s.Table().Handler(s.Policy()))
	return s
}

// settings returns the settings of now.
func (s *Service) settings() *nsq.Settings { return s.opts.Settings.Load() }

// Handler serves all routes.
func (s *Service) Handler() http.Handler { return s.handler }
