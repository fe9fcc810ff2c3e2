package web

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// Requests that no route takes as they are get the answers of nsqd 1.3, whose router forgives a slash at the end, upper
// case and doubled slashes, and tells which methods a path has.

// allow is the value of the header Allow.
func (rt *Route) allow() string {
	methods := append(strings.Split(rt.Methods, ","), http.MethodOptions)
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), ", ")
}

// refuseMethod answers a method that the route does not have: OPTIONS with those that it has.
func (rt *Route) refuseMethod(w http.ResponseWriter, method string) {
	w.Header().Set("Allow", rt.allow())
	if method == http.MethodOptions {
		return
	}
	WriteError(w, Fail(http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED"))
}

// at returns the route that serves a path, without any redirection.
func (t Table) at(mux *http.ServeMux, p string) (Route, bool) {
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: p}}
	_, pattern := mux.Handler(r)
	rt, ok := t[pattern]
	if ok && pattern != p && !strings.ContainsAny(pattern, "{") && !(strings.HasSuffix(pattern, "/") &&
		strings.HasPrefix(p, pattern)) {
		return Route{}, false // the mux would redirect
	}
	return rt, ok
}

// nearest returns the path that was meant, if a route takes the method there.
func (t Table) nearest(mux *http.ServeMux, method, p string) (string, bool) {
	clean := path.Clean("/" + p)
	for _, meant := range []string{clean, clean + "/", strings.ToLower(clean), strings.ToLower(clean) + "/"} {
		if meant == p || meant == "//" {
			continue
		}
		if rt, ok := t.at(mux, meant); ok && rt.takes(method) {
			return meant, true
		}
	}
	return "", false
}

// relative is the way from one path to another for a browser or program that may see both below a prefix, which a proxy
// takes away.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")-1) + strings.TrimPrefix(to, "/")
}

// Redirect sends the client to another path of this server, with the same query.
func Redirect(w http.ResponseWriter, r *http.Request, to string, status int) {
	where := relative(r.URL.EscapedPath(), (&url.URL{Path: to}).EscapedPath())
	if where == "" {
		where = "./"
	}
	if r.URL.RawQuery != "" {
		where += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", where)
	w.WriteHeader(status)
}

// forgiving serves mux, and redirects requests for paths that no route has.
func (t Table) forgiving(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := t.at(mux, r.URL.Path); ok || r.Method == http.MethodConnect {
			mux.ServeHTTP(w, r)
			return
		}
		status := http.StatusMovedPermanently
		if r.Method != http.MethodGet {
			status = http.StatusTemporaryRedirect // with the same method and body
		}
		if to, ok := t.nearest(mux, r.Method, r.URL.Path); ok {
			Redirect(w, r, to, status)
			return
		}
		WriteError(w, Fail(http.StatusNotFound, "NOT_FOUND"))
	})
}
