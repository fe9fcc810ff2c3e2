package api

import (
	"net/http"
	"strings"

	"penstock/internal/server/console"
	"penstock/internal/server/web"
)

// consoleRoutes returns the console's pages, and what only browsers need. The pages have no data, so everybody gets
// them; what they show comes from the other routes, which ask for permissions.
func (s *Service) consoleRoutes() map[string]web.Route {
	return map[string]web.Route{
		"/{$}":      web.Raw("GET,HEAD", toConsole, web.Open),
		"/console":  web.Raw("GET,HEAD", toConsole, web.Open),
		"/console/": web.Raw("GET,HEAD", console.Handler("/console/").ServeHTTP, web.Open),
		"/session":  web.Raw("GET,POST,DELETE", s.serveSession, web.Open),
	}
}

// toConsole sends a browser to the console. Programs get the answer of nsqd, which knows nothing at these paths.
func toConsole(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept"), "text/html") && r.URL.Path == "/" {
		web.WriteError(w, web.Fail(404, "NOT_FOUND"))
		return
	}
	web.Redirect(w, r, "/console/", http.StatusFound)
}
