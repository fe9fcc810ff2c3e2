// Package web holds what nsqd's and nsqlookupd's HTTP interfaces have in common: routes with the permission that each
// needs, replies and errors in NSQ's form, and the limits of the servers.
package web

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"penstock/engine"
)

// Limits of every HTTP server of the two.
const (
	HeaderTimeout  = 10 * time.Second // also of a TLS handshake
	readTimeout    = 60 * time.Second
	writeTimeout   = 5 * time.Minute // a CPU profile takes as long as its client asks for
	idleTimeout    = 2 * time.Minute
	MaxHeaderBytes = 64 << 10
)

// NewServer returns a server with these limits. What net/http complains of is logged at the debug level.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: HeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Headers of NSQ's replies.
const (
	ContentTypeHeader = "X-NSQ-Content-Type"
	ContentTypeV1     = "nsq; version=1.0"
)

// Access is the permission that a request needs while clients must prove who they are.
type Access uint8

// What only tells (/ping, /info, /stats, lookups) is Open, because the tools around NSQ send no secrets there.
const (
	Open    Access = iota
	Publish        // on the topic
	Admin          // on the topic, and on the channel if one is named
	Node           // on everything
)

// Permit decides whether a request may be served; nil: it may. q is its query.
type Permit func(need Access, r *http.Request, q url.Values) error

// Endpoint answers one path. A string is sent as it is, nil as an empty body, and anything else as JSON.
type Endpoint func(r *http.Request, q url.Values) (any, error)

// Route is an endpoint with the methods that it serves, separated by commas, and the permission that it needs.
type Route struct {
	Methods string
	Serve   Endpoint
	Need    Access
}

// On makes a Route.
func On(methods string, serve Endpoint, need Access) Route { return Route{methods, serve, need} }

// Handler checks the method, the query and the permission before it serves.
func (rt Route) Handler(permit Permit) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(","+rt.Methods+",", ","+r.Method+",") {
			WriteError(w, Fail(405, "METHOD_NOT_ALLOWED"))
			return
		}
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			WriteError(w, Fail(400, "INVALID_REQUEST"))
			return
		}
		if err := permit(rt.Need, r, q); err != nil {
			WriteError(w, err)
			return
		}
		v, err := rt.Serve(r, q)
		if err != nil {
			WriteError(w, err)
			return
		}
		writeReply(w, v)
	}
}

// Guard lets h serve only clients that may do everything.
func Guard(permit Permit, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := permit(Node, r, nil); err != nil {
			WriteError(w, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// writeReply sends a reply. If that fails the client is gone, and there is nobody to tell.
func writeReply(w http.ResponseWriter, v any) {
	w.Header().Set(ContentTypeHeader, ContentTypeV1)
	var body []byte
	switch v := v.(type) {
	case nil:
	case string:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(v)
	default:
		var err error
		if body, err = json.Marshal(v); err != nil {
			WriteError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
	}
	w.WriteHeader(200)
	_, _ = w.Write(body)
}

// WriteError sends an error: its status, and {"message": its code}.
func WriteError(w http.ResponseWriter, err error) {
	e := AsError(err)
	// The names of packages are of no use to the reader.
	text := strings.TrimPrefix(strings.TrimPrefix(e.code, "engine: "), "meta: ")
	body, _ := json.Marshal(map[string]string{"message": text}) // strings always encode
	w.Header().Set(ContentTypeHeader, ContentTypeV1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(body)
}

// Error is an HTTP status with NSQ's code as the message.
type Error struct {
	Status int
	code   string
}

// Fail makes an Error.
func Fail(status int, code string) *Error { return &Error{status, code} }

func (e *Error) Error() string { return e.code }

// AsError gives every error of the engine a status. 503 is for what another node or a later attempt may do better.
func AsError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, engine.ErrClosed):
		return Fail(503, "EXITING")
	case errors.Is(err, engine.ErrNoTopic):
		return Fail(404, "TOPIC_NOT_FOUND")
	case errors.Is(err, engine.ErrNoChannel):
		return Fail(404, "CHANNEL_NOT_FOUND")
	case errors.Is(err, engine.ErrMessageTooBig):
		return Fail(413, "MSG_TOO_BIG")
	case errors.Is(err, engine.ErrBatchTooBig):
		return Fail(413, "BODY_TOO_BIG")
	case errors.Is(err, engine.ErrHeaders), errors.Is(err, engine.ErrBatchKeys), errors.Is(err, engine.ErrTopicSettings):
		return Fail(400, err.Error())
	case errors.Is(err, engine.ErrQuota), errors.Is(err, engine.ErrStateFull):
		// Not 413, which says that this request is too large, nor 503, which says that the server is unable: the
		// request is in order, and what was set aside for the topic is used up.
		return Fail(http.StatusInsufficientStorage, err.Error())
	}
	return Fail(503, err.Error())
}

// TopicName is the topic that the query names. invalid is the code for a name that no topic can have; the endpoints
// differ in it, as in nsqd.
func TopicName(q url.Values, invalid string) (string, error) {
	if !q.Has("topic") {
		return "", Fail(400, "MISSING_ARG_TOPIC")
	}
	if name := q.Get("topic"); engine.ValidTopicName(name) {
		return name, nil
	}
	return "", Fail(400, invalid)
}
