// Package web holds the code that nsqd's and nsqlookupd's HTTP interfaces share: routes with the permission that each
// requires, replies and errors in NSQ's format, and the limits of the servers.
package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/names"
	"penstock/internal/node/topic"
)

// CommandLine answers /debug/pprof/cmdline with the name of the program only: arguments may hold secrets. GET /config
// shows settings without them.
func CommandLine(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, os.Args[0])
}

// Headers of NSQ's replies.
const (
	ContentTypeHeader = "X-NSQ-Content-Type"
	ContentTypeV1     = "nsq; version=1.0"
)

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

// DetailHeader has the sentence of an error that has one. The body is nsqd's to the letter, because programs
// compare it.
const DetailHeader = "Penstock-Detail"

// WriteError sends err as its HTTP status and the body {"message": CODE}.
func WriteError(w http.ResponseWriter, err error) {
	e := AsError(err)
	// Package names mean nothing to the client.
	text := strings.TrimPrefix(strings.TrimPrefix(e.code, "engine: "), "meta: ")
	body, _ := json.Marshal(map[string]string{"message": text}) // strings always encode
	if e.detail != "" {
		w.Header().Set(DetailHeader, e.detail)
	}
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
	detail string // "": the code says all
}

// Fail makes an Error.
func Fail(status int, code string) *Error { return &Error{Status: status, code: code} }

// FailWith makes an Error with a sentence for people.
func FailWith(status int, code, detail string) *Error { return &Error{status, code, detail} }

// Beyond makes an Error about a value that a setting of the node does not allow. The code is nsqd's, which programs
// compare; the detail is for people.
func Beyond(status int, code, what string, value, limit any, setting string) *Error {
	return &Error{Status: status, code: code, detail: beyondText(what, value, limit, setting)}
}

// beyondText says that a value is above the limit of a setting.
func beyondText(what string, value, limit any, setting string) string {
	return (&errs.LimitError{What: what, Value: value, Most: limit, Setting: setting}).Text()
}

func (e *Error) Error() string { return e.code }

// statuses are those of the engine's errors. Without a code, the text of the error is it.
var statuses = []struct {
	status int
	code   string
	errs   []error
}{
	{http.StatusServiceUnavailable, "EXITING", []error{errs.ErrClosed}},
	{http.StatusNotFound, "TOPIC_NOT_FOUND", []error{errs.ErrNoTopic}},
	{http.StatusNotFound, "CHANNEL_NOT_FOUND", []error{errs.ErrNoChannel}},
	{http.StatusNotFound, "", []error{topic.ErrNoMessage, errs.ErrNoProducer}},
	{http.StatusRequestEntityTooLarge, "MSG_TOO_BIG", []error{errs.ErrMessageTooBig}},
	{http.StatusRequestEntityTooLarge, "BODY_TOO_BIG", []error{errs.ErrBatchTooBig}},
	{http.StatusConflict, "", []error{errs.ErrVersion, errs.ErrChannelExists, topic.ErrRedriving, topic.ErrRedriveSkips}},
	{http.StatusBadRequest, "", []error{
		errs.ErrHeaders, errs.ErrBatchKeys, meta.ErrSettings, errs.ErrTopicOptions, errs.ErrDeferTooLong,
		errs.ErrSettings, errs.ErrSeek, errs.ErrNoPartition, errs.ErrFromLevel, errs.ErrChannelName, errs.ErrProducerLevel,
	}},
	// Not 413, which would say that this request is too large, and not 503, which would say that the server is unable: the
	// request is fine, but the topic has used up the space it may take.
	{http.StatusInsufficientStorage, "", []error{
		errs.ErrQuota, errs.ErrStateFull, errs.ErrTooManyPartitions, errs.ErrShare,
	}},
}

// AsError maps any error of the engine to an HTTP status. 503 means that another node, or a later attempt, may succeed.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	out := Fail(http.StatusServiceUnavailable, err.Error())
	for _, s := range statuses {
		if slices.ContainsFunc(s.errs, func(of error) bool { return errors.Is(err, of) }) {
			out = Fail(s.status, cmp.Or(s.code, err.Error()))
			break
		}
	}
	if over, ok := errors.AsType[*errs.LimitError](err); ok && out.Status == http.StatusRequestEntityTooLarge {
		out.detail = over.Text()
	}
	return out
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
	if name := q.Get("topic"); names.ValidTopic(name) {
		return name, nil
	}
	return "", Fail(400, invalid)
}

// ChannelName returns the channel in the query, with nsqd's code for a name that no channel can have.
func ChannelName(q url.Values) (string, error) {
	if !q.Has("channel") {
		return "", Fail(400, "MISSING_ARG_CHANNEL")
	}
	if name := q.Get("channel"); names.ValidChannel(name) {
		return name, nil
	}
	return "", Fail(400, "INVALID_ARG_CHANNEL")
}
