package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"penstock/internal/node"
	"penstock/internal/server/publish"
	"penstock/internal/server/web"
)

// extHeaderPrefix is the prefix of HTTP headers that become members of the ext of a /pub_ext. They take precedence over
// members of the same name in the parameter ext.
const extHeaderPrefix = "X-Nsqext-"

const (
	invalidTraceID = "INVALID_TRACE_ID"
	emptyForYouzan = http.StatusNotAcceptable // nsqd uses 400
)

// TracedReply is the answer to a message with a trace id. It says where the message is stored, like tracedFrame.
type TracedReply struct {
	Status  string `json:"status"`
	ID      uint64 `json:"id"`
	TraceID string `json:"trace_id"`
	Place   uint64 `json:"queue_offset"`
	Size    uint32 `json:"rawsize"`
}

// servePubExt serves /pub_ext: a message whose ext, a JSON object, is in the parameter ext.
func (s *Service) servePubExt(r *http.Request, q url.Values) (any, error) {
	ext, err := requestExt(r, q)
	if err != nil {
		return nil, err
	}
	headers, trace, traced, err := publish.ExtHeaders(ext)
	switch {
	case errors.Is(err, publish.ErrTraceID):
		return nil, web.Fail(400, invalidTraceID)
	case err != nil:
		return nil, web.Fail(400, publish.CodeBadExt)
	}
	return s.putYouzan(r, q, headers, trace, traced)
}

// servePubTrace serves /pubtrace: a message with a trace id and no other headers.
func (s *Service) servePubTrace(r *http.Request, q url.Values) (any, error) {
	trace, err := strconv.ParseUint(q.Get("trace_id"), 10, 64)
	if err != nil {
		return nil, web.Fail(400, invalidTraceID)
	}
	var headers []node.Header
	if trace != 0 {
		headers = []node.Header{{Key: []byte(publish.ExtTraceID), Value: strconv.AppendUint(nil, trace, 10)}}
	}
	return s.putYouzan(r, q, headers, trace, true)
}

// requestExt returns the ext of a request. The names that come from HTTP headers are in lower case, since HTTP does not
// preserve case.
func requestExt(r *http.Request, q url.Values) ([]byte, error) {
	text := q.Get("ext")
	if !json.Valid([]byte(text)) { // youzan's nsqd decodes it twice, so some clients encode it twice
		if again, err := url.QueryUnescape(text); err == nil {
			text = again
		}
	}
	var members map[string]json.RawMessage
	if len(text) > publish.MaxExtBytes || json.Unmarshal([]byte(text), &members) != nil || members == nil {
		return nil, web.Fail(400, publish.CodeBadExt)
	}
	changed := false
	for name, values := range r.Header {
		if name, ok := strings.CutPrefix(name, extHeaderPrefix); ok && len(values) > 0 {
			members[strings.ToLower(name)], changed = publish.AppendJSONText(nil, []byte(values[0])), true
		}
	}
	if !changed {
		return bytes.TrimSpace([]byte(text)), nil
	}
	ext, err := json.Marshal(members)
	if err != nil || len(ext) > publish.MaxExtBytes {
		return nil, web.Fail(400, publish.CodeBadExt)
	}
	return ext, nil
}

// putYouzan publishes the request's body, to the partition that the request names, if any.
func (s *Service) putYouzan(
	r *http.Request, q url.Values, headers []node.Header, trace uint64, traced bool,
) (any, error) {
	partition, err := partitionParam(q, "INVALID_ARG_TOPIC_PARTITION")
	if err != nil {
		return nil, err
	}
	var n publish.Numbers
	headers, numbered, err := publish.CutNumbers(requestNumbers(r, headers), &n)
	if err != nil {
		return nil, web.Fail(400, publish.CodeBadExt)
	}
	name, err := web.TopicName(q, "INVALID_ARG_TOPIC")
	if err != nil {
		return nil, err
	}
	body, done, err := s.readBody(r, s.settings().MaxMessageBytes, "MSG_TOO_BIG")
	if err != nil {
		return nil, err
	}
	defer done()
	if len(body) == 0 {
		return nil, web.Fail(emptyForYouzan, "MSG_EMPTY")
	}
	var first node.ID
	reply, err := s.put(r, name, func(t *node.Topic) (err error) {
		if numbered {
			first, err = s.putNumbered(r, t, partition, &node.Put{Messages: [][]byte{body}}, headers, &n)
		} else {
			first, err = putAt(t, partition, body, headers)
		}
		return err
	})
	if numbered {
		err = numberedFailure(err)
	}
	switch code := publish.YouzanCode(err); {
	case code == publish.CodeTopicMissing:
		return nil, web.Fail(404, code)
	case code != "":
		return nil, web.Fail(400, code)
	case err != nil || !traced:
		return reply, err
	}
	return TracedReply{"OK", uint64(first), strconv.FormatUint(trace, 10), uint64(first.MsgID()), 1}, nil
}

// putAt stores one message in a partition, or if partition is -1 in that of its key, or in any one if it has none. It
// waits for the answer, because the engine reads body until then.
func putAt(t *node.Topic, partition int, body []byte, headers []node.Header) (node.ID, error) {
	p := &node.Put{Messages: [][]byte{body}, Headers: [][]node.Header{headers}}
	if partition < 0 {
		partition = publish.KeyPartition(t, p.Headers)
	}
	return submitAndWait(p, func() error {
		if partition >= 0 {
			return t.SubmitTo(partition, p)
		}
		return t.Submit(p)
	})
}
