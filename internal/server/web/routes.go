package web

import (
	"net/http"
	"net/url"
	"strings"

	"penstock/internal/server/audit"
)

// Access is the permission that a route requires when clients must prove who they are.
type Access uint8

// The levels of access. Routes that are needed before a secret can be shown (probes, lookups, the login) are Open.
const (
	Open       Access = iota
	Known             // any permission at all; a setting opens these routes to everybody
	Publish           // on the topic
	View              // on the channel that is named; on the topic as a whole if none is
	ViewTopic         // on the topic as a whole
	ViewAny           // like View, but on everything if the query names no topic
	ViewSome          // on a channel of the topic: the answer tells of no other; on everything if the query names no topic
	ViewNode          // View on everything
	Admin             // on the channel that is named; on the topic as a whole if none is
	AdminTopic        // on the topic as a whole: a grant for some of its channels is not enough
	Feed              // Publish or Admin on a topic that a request's body or a setting names as the target of messages
	Node              // Admin on everything
)

// Permit decides whether a request with the query q may be served; nil: it may. who is the name that the client has
// proved, if any, also if it may not.
type Permit func(need Access, r *http.Request, q url.Values) (who string, err error)

// Endpoint serves one path. A string result is sent as it is, nil as an empty body, and anything else as JSON.
type Endpoint func(r *http.Request, q url.Values) (any, error)

// Route is what serves one path, with its methods, separated by commas, and the permission that it requires. Either
// Serve or Raw is set.
type Route struct {
	Methods string // AnyMethod: Raw decides
	Serve   Endpoint
	Raw     http.Handler // writes the reply itself
	Need    Access
	Look    Access // of GET and HEAD
	Quiet   bool   // changes nothing that the audit has to tell
}

// AnyMethod as Route.Methods leaves the check of the method to Raw.
const AnyMethod = "*"

// On makes a Route for an endpoint.
func On(methods string, serve Endpoint, need Access) Route {
	return Route{Methods: methods, Serve: serve, Need: need, Look: need}
}

// Raw makes a Route for a handler that writes the reply itself.
func Raw(methods string, h http.HandlerFunc, need Access) Route {
	return Route{Methods: methods, Raw: h, Need: need, Look: need}
}

// ToLook returns the route with another permission for GET and HEAD.
func (rt Route) ToLook(need Access) Route {
	rt.Look = need
	return rt
}

// Unaudited returns the route without lines in the audit, because it changes nothing.
func (rt Route) Unaudited() Route {
	rt.Quiet = true
	return rt
}

func reads(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// needs returns the permission for a method.
func (rt *Route) needs(method string) Access {
	if reads(method) {
		return rt.Look
	}
	return rt.Need
}

// audited reports whether a request is a change, of which the audit tells. Publishing is none.
func (rt *Route) audited(method string) bool {
	return !reads(method) && !rt.Quiet && rt.Need != Publish && rt.Need != Open
}

// Table holds all routes of a listener, by the pattern of their paths (as in http.ServeMux, without methods). There is
// no other way to a handler, so what is not in the table is not served.
type Table map[string]Route

// Policy decides about the requests of a listener, and tells of them.
type Policy struct {
	Permit Permit
	Audit  *audit.Log // nil: nobody is told
}

// Handler serves the table, redirects requests for paths that are almost in it, and answers 404 to every other path.
func (t Table) Handler(p Policy) http.Handler {
	mux := http.NewServeMux()
	for path, rt := range t {
		mux.HandleFunc(path, rt.handler(p))
	}
	return t.forgiving(mux)
}

// takes reports whether the route serves this method.
func (rt *Route) takes(method string) bool {
	return rt.Methods == AnyMethod || strings.Contains(","+rt.Methods+",", ","+method+",")
}

// handler returns a handler that checks the method, the query and the permission, and then serves the request. It tells
// the audit of refusals and of changes.
func (rt Route) handler(p Policy) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !rt.takes(r.Method) {
			rt.refuseMethod(w, r.Method)
			return
		}
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			WriteError(w, Fail(400, "INVALID_REQUEST"))
			return
		}
		who, err := p.Permit(rt.needs(r.Method), r, q)
		if err != nil {
			refused(p.Audit, who, r, q, err)
			WriteError(w, err)
			return
		}
		if rt.audited(r.Method) && p.Audit != nil {
			rt.serveAudited(p.Audit, who, w, r, q)
			return
		}
		_ = rt.serve(w, r, q)
	}
}

// serve serves the request, and returns the error that an endpoint returned.
func (rt *Route) serve(w http.ResponseWriter, r *http.Request, q url.Values) error {
	if rt.Raw != nil {
		rt.Raw.ServeHTTP(w, r)
		return nil
	}
	v, err := rt.Serve(r, q)
	if err != nil {
		WriteError(w, err)
		return err
	}
	writeReply(w, v)
	return nil
}
