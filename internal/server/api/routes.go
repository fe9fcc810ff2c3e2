package api

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/pprof"
	"net/url"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/stats"
	"penstock/internal/server/web"
)

// Table returns all routes of nsqd, and our own.
func (s *Service) Table() web.Table {
	all := web.Table{}
	for _, routes := range []map[string]web.Route{
		s.routes(), s.channelRoutes(), s.topicRoutes(), s.clusterRoutes(), s.consoleRoutes(), profileRoutes(),
	} {
		maps.Copy(all, routes)
	}
	all["/metrics"] = web.Raw("GET,HEAD", s.opts.Metrics.Handler().ServeHTTP, web.Known)
	all["/metrics/per-object"] = web.Raw("GET,HEAD", s.opts.Metrics.PerObject().ServeHTTP, web.Known)
	if h := s.opts.ClusterHandler; h != nil {
		all["/cluster/"] = web.Raw(web.AnyMethod, h.ServeHTTP, web.Node).ToLook(web.ViewNode)
		all["/cluster/topics"] = web.Raw(web.AnyMethod, h.ServeHTTP, web.Node).ToLook(web.ViewAny)
		all["/cluster/verify"] = web.Raw(web.AnyMethod, h.ServeHTTP, web.Node).Unaudited() // asked for again and again
	}
	for _, path := range []string{"/stats", "/metrics", "/metrics/per-object"} {
		all[path] = all[path].InTurn(s.TurnsOf)
	}
	for _, path := range []string{"/topic/trace", "/topic/search"} {
		all[path] = all[path].InTurn(func(*http.Request) *web.Turns { return s.turns.traces })
	}
	return all
}

// turns are those of answers that cost much. Clients that have shown a token do not wait for those that have shown
// none.
type turns struct{ strangers, known, traces *web.Turns }

// TurnsOf returns those in which a request for statistics or metrics is served.
func (s *Service) TurnsOf(r *http.Request) *web.Turns {
	if s.auth != nil {
		if _, err := s.principal(r, s.tokenOf(r)); err == nil {
			return s.turns.known
		}
	}
	return s.turns.strangers
}

// profileRoutes returns the routes of net/http/pprof, as nsqd has them.
func profileRoutes() map[string]web.Route {
	all := map[string]web.Route{}
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": web.CommandLine, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		all[path] = web.Raw("GET,HEAD,POST", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(web.ContentTypeHeader, web.ContentTypeV1)
			h(w, r)
		}, web.Node).Unaudited()
	}
	return all
}

func (s *Service) routes() map[string]web.Route {
	return map[string]web.Route{
		"/ping":            web.Raw("GET,HEAD", s.servePing, web.Open),
		livePath:           web.Raw("GET,HEAD", s.Probe, web.Open),
		readyPath:          web.Raw("GET,HEAD", s.Probe, web.Open),
		startupPath:        web.Raw("GET,HEAD", s.Probe, web.Open),
		HealthPath:         web.Raw("GET,HEAD", s.serveHealth, web.Admin), // it names nodes
		"/info":            web.On("GET", s.serveInfo, web.Known),
		"/pub":             web.On("POST", s.servePub, web.Publish),
		"/mpub":            web.On("POST", s.serveMpub, web.Publish),
		"/pub_ext":         web.On("POST", s.servePubExt, web.Publish),
		"/pubtrace":        web.On("POST", s.servePubTrace, web.Publish),
		"/producer/open":   web.On("POST", s.serveProducerOpen, web.Publish),
		"/producer/remove": web.On("POST", s.onTopic(serveProducerRemove), web.AdminTopic),
		"/topic/create":    web.On("POST", s.serveTopicCreate, web.AdminTopic),
		"/topic/delete":    web.On("POST", s.serveTopicDelete, web.AdminTopic),
		"/topic/empty":     web.On("POST", s.topicVerb((*node.Topic).Empty), web.AdminTopic),
		"/topic/pause":     web.On("POST", s.topicVerb((*node.Topic).Pause), web.AdminTopic),
		"/topic/unpause":   web.On("POST", s.topicVerb((*node.Topic).Unpause), web.AdminTopic),
		"/channel/create":  web.On("POST", s.serveChannelCreate, web.Admin),
		"/channel/delete":  web.On("POST", s.serveChannelDelete, web.Admin),
		"/channel/empty":   web.On("POST", s.channelVerb((*node.Channel).Empty), web.Admin),
		"/channel/pause":   web.On("POST", s.channelVerb((*node.Channel).Pause), web.Admin),
		"/channel/unpause": web.On("POST", s.channelVerb((*node.Channel).Unpause), web.Admin),
		"/backup":          web.On("GET,POST", s.serveBackup, web.Node),
		"/audit":           web.On("GET", s.serveAudit, web.Node),
		"/reload":          web.On("POST", s.serveReload, web.Node),
		"/tokens":          web.On("GET", s.serveTokens, web.Node),
		"/config":          web.On("GET", s.serveSettings, web.Node).ToLook(web.ViewNode),
		"/node/config":     web.On("GET", s.onNode(askConfig), web.ViewNode),
		"/node/clients":    web.On("GET", s.onNode(askClients), web.ViewNode).InTurn(s.TurnsOf),
		"/config/{option}": web.On("GET,PUT", s.serveConfig, web.Node).ToLook(web.ViewNode),
		"/debug/freememory": web.On("POST", func(*http.Request, url.Values) (any, error) {
			debug.FreeOSMemory()
			return nil, nil
		}, web.Node),
		"/debug/setblockrate": web.On("PUT", func(_ *http.Request, q url.Values) (any, error) {
			rate, err := strconv.Atoi(q.Get("rate"))
			if err != nil {
				return nil, web.Fail(400, "INVALID_RATE")
			}
			runtime.SetBlockProfileRate(rate)
			return nil, nil
		}, web.Node),
		"/stats": web.On("GET", s.serveStats, web.Known),
	}
}

func (s *Service) servePing(w http.ResponseWriter, _ *http.Request) {
	state, ok := stats.Health(s.engine)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if warnings := s.warnings(); warnings != "" {
		w.Header().Set("Penstock-Warnings", warnings)
	}
	if !ok {
		w.WriteHeader(500)
	}
	_, _ = w.Write([]byte(state))
}

// warnings lists the problems of a node that still works. They go into a header, because NSQ's clients expect exactly
// two letters as the body of /ping.
func (s *Service) warnings() string {
	var all []string
	for _, f := range s.engine.Warnings() {
		all = append(all, fmt.Sprintf("%s=%d", f.Name, f.Count))
	}
	return strings.Join(all, ", ")
}

// storage is node.Info in the form of /info.
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

// serveInfo answers anybody, as nsqd does. But the identity of the data directory is not for strangers.
func (s *Service) serveInfo(r *http.Request, _ url.Values) (any, error) {
	in := s.engine.Info()
	if _, err := s.permit(web.Publish, r, nil); s.auth != nil && (s.tokenOf(r) == "" || err != nil) {
		in.StoreID = ""
	}
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
		s.opts.Version, s.opts.BroadcastAddress, s.opts.Hostname,
		s.opts.HTTPPort, s.opts.TCPPort, s.opts.Started.Unix(),
		int64(s.settings().MaxHeartbeatInterval),
		s.settings().MaxOutputBufferBytes, int64(s.settings().MaxOutputBufferTimeout), s.settings().MaxDeflateLevel,
		storage{
			in.IOEngine, in.IOReason, in.Direct, in.Registered, in.BlockBytes,
			in.FileSystem, in.Device, in.DeviceCache, in.Kernel,
			in.NodeID, in.StoreID, in.FormatVersion,
			in.Recovered.Seconds(), in.RecoveredBytes, in.PartitionsReadOnly, in.CorruptionsAtRecover,
		},
	}, nil
}

func (s *Service) serveStats(_ *http.Request, q url.Values) (any, error) {
	flag := func(name string) (bool, error) {
		if q.Get(name) == "" {
			return true, nil
		}
		v, err := strconv.ParseBool(q.Get(name))
		if err != nil {
			return false, web.Fail(400, "INVALID_REQUEST")
		}
		return v, nil
	}
	clients, err := flag("include_clients")
	if err != nil {
		return nil, err
	}
	mem, err := flag("include_mem")
	if err != nil {
		return nil, err
	}
	reply := s.opts.Stats.Collect(q.Get("topic"), q.Get("channel"), clients)
	if mem {
		reply.Memory = stats.ReadMemory()
	}
	if q.Get("format") == "json" {
		return reply, nil
	}
	return reply.Text(time.Now()), nil
}
