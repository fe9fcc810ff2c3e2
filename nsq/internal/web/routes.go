package web

import (
	"net/http"
	"net/url"
	"strings"
)

// Access is the permission that a route requires when clients must prove who they are.
type Access uint8

// The levels of access. Routes that NSQ's tools read without a secret (/ping, /info, /stats, lookups) are Open.
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

// Route is what serves one path, with its methods, separated by commas, and the permission that it requires. Either
// Serve or Raw is set.
type Route struct {
	Methods string // AnyMethod: Raw decides
	Serve   Endpoint
	Raw     http.Handler // writes the reply itself
	Need    Access
}

// AnyMethod as Route.Methods leaves the check of the method to Raw.
const AnyMethod = "*"

// On makes a Route for an endpoint.
func On(methods string, serve Endpoint, need Access) Route {
	return Route{Methods: methods, Serve: serve, Need: need}
}

// Raw makes a Route for a handler that writes the reply itself.
func Raw(methods string, h http.HandlerFunc, need Access) Route {
	return Route{Methods: methods, Raw: h, Need: need}
}

// Table holds all routes of a listener, by the pattern of their paths (as in http.ServeMux, without methods). There is
// no other way to a handler, so what is not in the table is not served.
type Table map[string]Route

// Handler serves the table, and answers 404 to every other path.
func (t Table) Handler(permit Permit) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { WriteError(w, Fail(404, "NOT_FOUND")) })
	for path, rt := range t {
		mux.HandleFunc(path, rt.handler(permit))
	}
	return mux
}

// takes reports whether the route serves this method.
func (rt *Route) takes(method string) bool {
	return rt.Methods == AnyMethod || strings.Contains(","+rt.Methods+",", ","+method+",")
}

// handler returns a handler that checks the method, the query and the permission, and then serves the request.
func (rt Route) handler(permit Permit) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !rt.takes(r.Method) {
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
		if rt.Raw != nil {
			rt.Raw.ServeHTTP(w, r)
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
