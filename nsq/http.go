package nsq

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"penstock/engine"
)

const (
	httpHeaderTimeout  = 10 * time.Second
	httpReadTimeout    = 60 * time.Second
	httpWriteTimeout   = 5 * time.Minute // a CPU profile takes as long as its client asks for
	httpIdleTimeout    = 2 * time.Minute
	maxHTTPHeaderBytes = 64 << 10

	// maxHTTPBodies bounds the memory of all request bodies that are being read or stored.
	maxHTTPBodies = 256 << 20
)

// httpError is a reply with nsqd's code as its message.
type httpError struct {
	status int
	code   string
}

func (e *httpError) Error() string { return e.code }

// endpoint answers one path: with a string as it is, nil as nothing, anything else as JSON.
type endpoint func(r *http.Request, q url.Values) (any, error)

type route struct {
	methods string // comma separated
	serve   endpoint
	access  access
}

// httpHandler has the routes of nsqd.
func (s *Server) httpHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { writeError(w, &httpError{404, "NOT_FOUND"}) })
	mux.HandleFunc("/ping", s.servePing)
	if s.opts.ClusterHandler != nil {
		mux.Handle("/cluster/", guard(s.permit, s.opts.ClusterHandler))
	}
	for _, routes := range []map[string]route{s.routes(), s.channelRoutes(), s.topicRoutes()} {
		for path, rt := range routes {
			mux.HandleFunc(path, rt.handler(s.permit))
		}
	}
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.Handle(path, guard(s.permit, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(contentTypeHeader, contentTypeV1)
			h(w, r)
		})))
	}
	return mux
}

// newWebServer has the limits that every HTTP server here has.
func (s *Server) newWebServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: httpHeaderTimeout,
		ReadTimeout:       httpReadTimeout,
		WriteTimeout:      httpWriteTimeout,
		IdleTimeout:       httpIdleTimeout,
		MaxHeaderBytes:    maxHTTPHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelDebug),
	}
}

func (s *Server) routes() map[string]route {
	return map[string]route{
		"/info":             {"GET", s.serveInfo, accessOpen},
		"/pub":              {"POST", s.servePub, accessPublish},
		"/mpub":             {"POST", s.serveMpub, accessPublish},
		"/pub_ext":          {"POST", s.servePubExt, accessPublish},
		"/pubtrace":         {"POST", s.servePubTrace, accessPublish},
		"/topic/create":     {"POST", s.serveTopicCreate, accessAdmin},
		"/topic/delete":     {"POST", s.serveTopicDelete, accessAdmin},
		"/topic/empty":      {"POST", s.topicVerb((*engine.Topic).Empty), accessAdmin},
		"/topic/pause":      {"POST", s.topicVerb((*engine.Topic).Pause), accessAdmin},
		"/topic/unpause":    {"POST", s.topicVerb((*engine.Topic).Unpause), accessAdmin},
		"/channel/create":   {"POST", s.serveChannelCreate, accessAdmin},
		"/channel/delete":   {"POST", s.serveChannelDelete, accessAdmin},
		"/channel/empty":    {"POST", s.channelVerb((*engine.Channel).Empty), accessAdmin},
		"/channel/pause":    {"POST", s.channelVerb((*engine.Channel).Pause), accessAdmin},
		"/channel/unpause":  {"POST", s.channelVerb((*engine.Channel).Unpause), accessAdmin},
		"/config/{option}":  {"GET,PUT", s.serveConfig, accessNode},
		"/debug/freememory": {"POST", func(*http.Request, url.Values) (any, error) { debug.FreeOSMemory(); return nil, nil }, accessNode},
		"/debug/setblockrate": {"PUT", func(_ *http.Request, q url.Values) (any, error) {
			rate, err := strconv.Atoi(q.Get("rate"))
			if err != nil {
				return nil, &httpError{400, "INVALID_RATE"}
			}
			setBlockRate(rate)
			return nil, nil
		}, accessNode},
		"/stats": {"GET", s.serveStats, accessOpen},
	}
}

const (
	contentTypeHeader = "X-NSQ-Content-Type"
	contentTypeV1     = "nsq; version=1.0"
)

func (rt route) handler(permit permitter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(","+rt.methods+",", ","+r.Method+",") {
			writeError(w, &httpError{405, "METHOD_NOT_ALLOWED"})
			return
		}
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			writeError(w, &httpError{400, "INVALID_REQUEST"})
			return
		}
		if err := permit(rt.access, r, q); err != nil {
			writeError(w, err)
			return
		}
		v, err := rt.serve(r, q)
		if err != nil {
			writeError(w, err)
			return
		}
		writeReply(w, v)
	}
}

// writeReply and writeError send a reply; an error of the client's connection has nobody to be told to.
func writeReply(w http.ResponseWriter, v any) {
	w.Header().Set(contentTypeHeader, contentTypeV1)
	var body []byte
	switch v := v.(type) {
	case nil:
	case string:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(v)
	default:
		var err error
		if body, err = json.Marshal(v); err != nil {
			writeError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
	}
	w.WriteHeader(200)
	_, _ = w.Write(body)
}

func writeError(w http.ResponseWriter, err error) {
	e := asHTTPError(err)
	text := strings.TrimPrefix(strings.TrimPrefix(e.code, "engine: "), "meta: ") // packages are not its reader's business
	body, _ := json.Marshal(map[string]string{"message": text})                  // strings always encode
	w.Header().Set(contentTypeHeader, contentTypeV1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.status)
	_, _ = w.Write(body)
}

// asHTTPError gives every error of the engine a status: what another node or a later try may do better is 503.
func asHTTPError(err error) *httpError {
	var e *httpError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, engine.ErrClosed):
		return &httpError{503, "EXITING"}
	case errors.Is(err, engine.ErrNoTopic):
		return &httpError{404, "TOPIC_NOT_FOUND"}
	case errors.Is(err, engine.ErrNoChannel):
		return &httpError{404, "CHANNEL_NOT_FOUND"}
	case errors.Is(err, engine.ErrMessageTooBig):
		return &httpError{413, "MSG_TOO_BIG"}
	case errors.Is(err, engine.ErrBatchTooBig):
		return &httpError{413, "BODY_TOO_BIG"}
	case errors.Is(err, engine.ErrHeaders), errors.Is(err, engine.ErrBatchKeys), errors.Is(err, engine.ErrTopicSettings):
		return &httpError{400, err.Error()}
	case errors.Is(err, engine.ErrQuota), errors.Is(err, engine.ErrStateFull):
		// Not 413, which says that this request is too large, nor 503, which says that the server cannot: the request is in order, and what was
		// set aside for the topic is used up.
		return &httpError{http.StatusInsufficientStorage, err.Error()}
	}
	return &httpError{503, err.Error()}
}

func (s *Server) servePing(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		writeError(w, &httpError{405, "METHOD_NOT_ALLOWED"})
		return
	}
	health, ok := s.health()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if warnings := s.warnings(); warnings != "" {
		w.Header().Set("Penstock-Warnings", warnings)
	}
	if !ok {
		w.WriteHeader(500)
	}
	_, _ = w.Write([]byte(health))
}

// warnings names what is wrong with a node that works: NSQ's clients expect two letters from /ping, so it is a header.
func (s *Server) warnings() string {
	var all []string
	for _, f := range s.engine.Warnings() {
		all = append(all, fmt.Sprintf("%s=%d", f.Name, f.Count))
	}
	return strings.Join(all, ", ")
}

// health is what /ping and /stats say.
func (s *Server) health() (string, bool) {
	if err := s.engine.Health(); err != nil {
		return "NOK - " + err.Error(), false
	}
	return "OK", true
}

// storage is engine.Info for people.
type storage struct {
	IOEngine           string   `json:"io_engine"`
	IOReason           string   `json:"io_reason"`
	Direct             bool     `json:"direct"`
	Registered         bool     `json:"registered_buffers"`
	BlockBytes         int      `json:"block_bytes"`
	FileSystem         string   `json:"file_system"`
	Device             string   `json:"device"`
	DeviceCache        string   `json:"device_cache"`
	Kernel             string   `json:"kernel"`
	NodeID             string   `json:"node_id"`
	StoreID            string   `json:"store_id"`
	FormatVersion      int      `json:"format_version"`
	RecoverySeconds    float64  `json:"recovery_seconds"`
	RecoveredBytes     int64    `json:"recovered_bytes"`
	PartitionsReadOnly int      `json:"partitions_read_only"`
	Corruptions        []string `json:"corruptions"`
}

func (s *Server) serveInfo(*http.Request, url.Values) (any, error) {
	in := s.engine.Info()
	return struct {
		Version                string  `json:"version"`
		BroadcastAddress       string  `json:"broadcast_address"`
		Hostname               string  `json:"hostname"`
		HTTPPort               int     `json:"http_port"`
		TCPPort                int     `json:"tcp_port"`
		StartTime              int64   `json:"start_time"`
		MaxHeartbeatInterval   int64   `json:"max_heartbeat_interval"`
		MaxOutputBufferSize    int     `json:"max_output_buffer_size"`
		MaxOutputBufferTimeout int64   `json:"max_output_buffer_timeout"`
		MaxDeflateLevel        int     `json:"max_deflate_level"`
		Storage                storage `json:"storage"`
	}{
		s.opts.Version, s.opts.BroadcastAddress, s.opts.Hostname, port(s.HTTPAddr()), port(s.TCPAddr()), s.started.Unix(),
		int64(s.opts.MaxHeartbeatInterval), s.opts.MaxOutputBufferBytes, int64(s.opts.MaxOutputBufferTimeout), s.opts.MaxDeflateLevel,
		storage{
			in.IOEngine, in.IOReason, in.Direct, in.Registered, in.BlockBytes, in.FileSystem, in.Device, in.DeviceCache, in.Kernel,
			in.NodeID, in.StoreID, in.FormatVersion, in.Recovered.Seconds(), in.RecoveredBytes, in.PartitionsReadOnly, in.CorruptionsAtRecover,
		},
	}, nil
}

func port(a net.Addr) int {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}

// boundedListener closes connections beyond a number at once.
type boundedListener struct {
	net.Listener
	open atomic.Int64
	most int64
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &boundedConn{Conn: nc, l: l}, nil
		}
		l.open.Add(-1)
		_ = nc.Close() // refused: nothing to say to it
	}
}

type boundedConn struct {
	net.Conn
	l      *boundedListener
	closed atomic.Bool
}

func (c *boundedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.l.open.Add(-1)
	}
	return c.Conn.Close()
}
