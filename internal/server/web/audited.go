package web

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
)

// maxAuditedBytes bounds what an entry of the audit has of a request's body and of an answer.
const maxAuditedBytes = 1 << 10

// audited are the parameters that an entry of the audit shows. Others might hold something that nobody should read.
var audited = []string{
	"topic", "channel", "new", "node", "partitions", "partition_num", "partition", "replicas", "from", "at", "to", "value",
	"count", "dir", "rate",
}

// entry describes a request.
func entry(who string, r *http.Request, q url.Values) audit.Entry {
	e := audit.Entry{Who: cmp.Or(who, auth.Certified(r.TLS)), From: r.RemoteAddr, What: r.Method + " " + r.URL.Path}
	var names []string
	for _, name := range audited {
		if q.Has(name) {
			names = append(names, name+"="+q.Get(name))
		}
	}
	e.Names = strings.Join(names, " ")
	return e
}

// EntryOf describes a change that a request brought about besides what it asked for. who is the name that its client
// has proved, if any.
func EntryOf(who string, r *http.Request, what, names string) audit.Entry {
	who = cmp.Or(who, auth.Certified(r.TLS))
	return audit.Entry{Who: who, From: r.RemoteAddr, What: what + " by " + r.URL.Path, Names: names}
}

// refused tells the audit that a request was refused.
func refused(log *audit.Log, who string, r *http.Request, q url.Values, err error) {
	if log != nil {
		log.Refused(entry(who, r, q), err.Error())
	}
}

// serveAudited serves a request that changes something, and tells the audit what came of it.
func (rt *Route) serveAudited(log *audit.Log, who string, w http.ResponseWriter, r *http.Request, q url.Values) {
	body := &heardBody{ReadCloser: r.Body}
	r.Body = body
	reply := &heardReply{ResponseWriter: w, status: http.StatusOK}
	err := rt.serve(reply, r, q)
	e := entry(who, r, q)
	e.Body = string(body.heard)
	switch {
	case err != nil:
		e.Result = err.Error()
	case reply.status >= 400:
		e.Result = reply.message()
	}
	switch reply.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		log.Refused(e, e.Result)
	default:
		log.Changed(e)
	}
}

// heardBody keeps the beginning of what is read from a request's body.
type heardBody struct {
	io.ReadCloser
	heard []byte
}

func (b *heardBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.heard = append(b.heard, p[:min(n, maxAuditedBytes-len(b.heard))]...)
	return n, err
}

// heardReply keeps the status and the beginning of an answer.
type heardReply struct {
	http.ResponseWriter
	status int
	heard  []byte
}

func (w *heardReply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *heardReply) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *heardReply) Write(p []byte) (int, error) {
	w.heard = append(w.heard, p[:min(len(p), maxAuditedBytes-len(w.heard))]...)
	return w.ResponseWriter.Write(p)
}

// message returns the sentence in an answer that is an error.
func (w *heardReply) message() string {
	var said struct{ Message string }
	if json.Unmarshal(w.heard, &said) == nil && said.Message != "" {
		return said.Message
	}
	return http.StatusText(w.status)
}
