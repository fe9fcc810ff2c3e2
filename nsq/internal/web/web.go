// Package web holds the code that nsqd's and nsqlookupd's HTTP interfaces share: routes with the permission that each
// requires, replies and errors in NSQ's format, and the limits of the servers.
package web

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"penstock/engine"
)

// Limits of both HTTP servers.
const (
	HeaderTimeout  = 10 * time.Second // also for a TLS handshake
	readTimeout    = 60 * time.Second
	writeTimeout   = 5 * time.Minute // long, because the client chooses how long a CPU profile takes
	idleTimeout    = 2 * time.Minute
	MaxHeaderBytes = 64 << 10
)

// NewServer returns a server with these limits. Messages from net/http are logged at the debug level.
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

// Access is the permission that a route requires when clients must prove who they are.
type Access uint8

// The levels of access. Routes that only read (/ping, /info, /stats, lookups) are Open, because NSQ's tools send no
// secrets with those requests.
const (
	Open    Access = iota
	Publish        // on the topic
	Admin          // on the topic, and on the channel if one is named
	Node           // on everything
)

// Permit decides whether a request with the query q may be served; nil: it may.
type Permit func(need Access, r *http.Request, q url.Values) error

// Endpoint serves one path. A string result is sent as it is, nil as an empty body, and anything else as JSON.
type Endpoint func(r *http.Request, q url.Values) (any, error)

// Route is an endpoint with its methods, separated by commas, and the permission that it requires.
type Route struct {
	Methods string
	Serve   Endpoint
	Need    Access
}

// On makes a Route.
func On(methods string, serve Endpoint, need Access) Route { return Route{methods, serve, need} }

// Handler returns a handler that checks the method, the query and the permission, and then calls the endpoint.
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

// Guard restricts h to clients that may administer the node.
func Guard(permit Permit, h http.Handler) http.Handler { return GuardFor(Node, permit, h) }

// GuardFor restricts h to clients that have the permission need. It looks at no topic in the query.
func GuardFor(need Access, permit Permit, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := permit(need, r, nil); err != nil {
			WriteError(w, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// writeReply sends a reply. An error of writing means that the client is gone, and is ignored.
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

// WriteError sends err as its HTTP status and the body {"message": CODE}.
func WriteError(w http.ResponseWriter, err error) {
	e := AsError(err)
	// Package names mean nothing to the client.
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

// AsError maps any error of the engine to an HTTP status. 503 means that another node, or a later attempt, may succeed.
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
	case errors.Is(err, engine.ErrHeaders), errors.Is(err, engine.ErrBatchKeys), errors.Is(err, engine.ErrTopicSettings),
		errors.Is(err, engine.ErrTopicOptions):
		return Fail(400, err.Error())
	case errors.Is(err, engine.ErrQuota), errors.Is(err, engine.ErrStateFull):
		// Not 413, which would say that this request is too large, and not 503, which would say that the server is
		// unable: the request is fine, but the topic has used up the space it may take.
		return Fail(http.StatusInsufficientStorage, err.Error())
	}
	return Fail(503, err.Error())
}

// Count returns a number in the query, from 1 to most. invalid is the error code for anything else.
func Count(q url.Values, name string, most int, invalid string) (int, error) {
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < 1 || n > most {
		return 0, Fail(400, invalid)
	}
	return n, nil
}

// TopicName returns the topic in the query. invalid is the error code for a name that no topic can have; as in nsqd, it
// differs between endpoints.
func TopicName(q url.Values, invalid string) (string, error) {
	if !q.Has("topic") {
		return "", Fail(400, "MISSING_ARG_TOPIC")
	}
	if name := q.Get("topic"); engine.ValidTopicName(name) {
		return name, nil
	}
	return "", Fail(400, invalid)
}
