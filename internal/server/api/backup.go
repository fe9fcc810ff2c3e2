package api

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"penstock/internal/node"
	"penstock/internal/server/web"
)

// serveBackup begins a backup of this node's data into a directory of this machine (POST), or shows the state of the
// last one (GET). A backup may take longer than a request may, so nobody waits for its end here.
func (s *Service) serveBackup(r *http.Request, q url.Values) (any, error) {
	if r.Method == http.MethodGet {
		return s.engine.Backups().Status(), nil
	}
	if !q.Has("dir") {
		return nil, web.Fail(400, "MISSING_ARG_DIR")
	}
	o := node.BackupOptions{Dir: q.Get("dir"), Below: s.opts.BackupPath, MadeBy: s.opts.Version}
	if text := q.Get("rate"); text != "" {
		rate, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, web.Fail(400, "INVALID_RATE")
		}
		o.Rate = rate
	}
	err := s.engine.Backups().Start(o)
	switch {
	case errors.Is(err, node.ErrBackupRuns):
		return nil, web.Fail(409, err.Error())
	case errors.Is(err, node.ErrBackupDir):
		return nil, web.Fail(400, err.Error())
	case err != nil:
		return nil, err
	}
	return s.engine.Backups().Status(), nil
}
