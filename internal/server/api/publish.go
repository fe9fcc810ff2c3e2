package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/bytebufferpool"

	"penstock/internal/clip"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/server/publish"
	"penstock/internal/server/web"
	"penstock/internal/shares"
)

const (
	httpReadStep  = 16 << 10 // the least by which a body's buffer grows
	maxPooledBody = 1 << 20  // larger buffers are not pooled
)

// overSize is the error of a message or a body that is too big.
func overSize(code string, bytes any, most int) error {
	if code == "MSG_TOO_BIG" {
		return web.Beyond(413, code, "the size of a message in bytes", bytes, most, "max-message-bytes")
	}
	return web.Beyond(413, code, "the size of the body in bytes", bytes, most, "max-body-bytes")
}

// readBody reads a request's body of at most most bytes; for a larger one it fails with the code tooBig, MSG_TOO_BIG or
// BODY_TOO_BIG. What goes beyond httpReadStep is a part of Options.MaxLargeInputBytes, and of the share of the client's
// token or address. The caller must call done when it no longer needs the body.
func (s *Service) readBody(r *http.Request, most int, tooBig string) (body []byte, done func(), err error) {
	if r.ContentLength > int64(most) {
		return nil, nil, overSize(tooBig, r.ContentLength, most)
	}
	bb := bytebufferpool.Get()
	held, who := int64(0), ""
	done = func() {
		if held > 0 {
			s.opts.Received.Give(who, held)
		}
		if cap(bb.B) <= maxPooledBody {
			bytebufferpool.Put(bb)
		}
	}
	for {
		if len(bb.B) == int(held)+httpReadStep {
			// Room for twice what has arrived: the length that the request announces is not trusted.
			if who == "" {
				who = s.payer(r)
			}
			more := int64(min(len(bb.B), most+1-len(bb.B)))
			if err := s.opts.Received.TryTake(who, more); err != nil {
				done()
				return nil, nil, s.noRoomFor(err)
			}
			held += more
		}
		room := int(held) + httpReadStep
		if room > cap(bb.B) {
			bb.B = append(make([]byte, 0, room), bb.B...)
		}
		n, err := r.Body.Read(bb.B[len(bb.B):room])
		bb.B = bb.B[:len(bb.B)+n]
		switch {
		case len(bb.B) > most:
			done()
			return nil, nil, overSize(tooBig, fmt.Sprintf("above %d", most), most)
		case err == io.EOF:
			return bb.B, done, nil
		case err != nil:
			done()
			return nil, nil, web.BodyFailure(err)
		}
	}
}

// payer is who a request's body is charged to: the token, or the address of a client that has shown none.
func (s *Service) payer(r *http.Request) string {
	if s.auth != nil {
		if who, err := s.principal(r, s.tokenOf(r)); err == nil {
			return "token " + who.Name()
		}
	}
	return web.AddressOf(r)
}

// noRoomFor is the answer to a body for which there is no room.
func (s *Service) noRoomFor(err error) error {
	if errors.Is(err, shares.ErrShare) {
		return web.Beyond(503, "TOO_MANY_BODIES", "the size in bytes of what this token or address has under way", "more",
			s.opts.Received.Share(), "max-large-input-bytes, of which it may have a quarter")
	}
	return web.Beyond(503, "TOO_MANY_BODIES", "the size in bytes of all bodies that are under way", "more",
		s.settings().MaxLargeInputBytes, "max-large-input-bytes")
}

func (s *Service) servePub(r *http.Request, q url.Values) (any, error) {
	body, done, err := s.readBody(r, s.settings().MaxMessageBytes, "MSG_TOO_BIG")
	if err != nil {
		return nil, err
	}
	defer done()
	if len(body) == 0 {
		return nil, web.Fail(400, "MSG_EMPTY")
	}
	name, err := web.TopicName(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	delay := time.Duration(0)
	if q.Has("defer") {
		ms, err := strconv.ParseUint(q.Get("defer"), 10, 64)
		if most := uint64(s.settings().MaxDefer / time.Millisecond); err != nil || ms > most {
			return nil, web.Beyond(400, "INVALID_DEFER", "the delay in ms", clip.Text(q.Get("defer"), 32), most, "max-defer")
		}
		delay = time.Duration(ms) * time.Millisecond
	}
	headers := messageHeaders(r)
	var n publish.Numbers
	headers, numbered, err := publish.CutNumbers(headers, &n)
	if err != nil {
		return nil, err
	}
	if numbered {
		return s.putOfProducer(r, q, name, [][]byte{body}, headers, delay, &n)
	}
	return s.put(r, name, func(t *node.Topic) error {
		_, err := t.PublishMessage(r.Context(), node.Outgoing{
			Body: body, Headers: headers, Key: []byte(q.Get("key")), Delay: delay,
		})
		return err
	})
}

func (s *Service) serveMpub(r *http.Request, q url.Values) (any, error) {
	if r.ContentLength > int64(s.settings().MaxBodyBytes) {
		return nil, overSize("BODY_TOO_BIG", r.ContentLength, s.settings().MaxBodyBytes)
	}
	name, err := web.TopicName(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	body, done, err := s.readBody(r, s.settings().MaxBodyBytes, "BODY_TOO_BIG")
	if err != nil {
		return nil, err
	}
	defer done()
	var messages [][]byte
	if binaryParam(q) {
		var check publish.BatchCheck
		if wrong := check.Check(body, len(body), s.settings().MaxMessageBytes, s.settings().MaxBodyBytes); wrong != "" {
			code, _, _ := strings.Cut(strings.TrimPrefix(wrong, "E_"), " ")
			return nil, web.Fail(413, code)
		}
		messages = publish.Messages(nil, body)
	} else if messages, err = splitLines(body, s.settings().MaxMessageBytes); err != nil {
		return nil, err
	}
	headers := messageHeaders(r)
	var n publish.Numbers
	headers, numbered, err := publish.CutNumbers(headers, &n)
	if err != nil {
		return nil, err
	}
	if numbered && len(messages) > 0 {
		return s.putOfProducer(r, q, name, messages, headers, 0, &n)
	}
	return s.put(r, name, func(t *node.Topic) error {
		if len(messages) == 0 {
			return nil // only empty lines: nsqd stores nothing and answers OK
		}
		if len(headers) == 0 && q.Get("key") == "" {
			_, err := t.PublishBatch(r.Context(), messages)
			return err
		}
		all := make([]node.Outgoing, len(messages))
		for i, m := range messages {
			all[i] = node.Outgoing{Body: m, Headers: headers, Key: []byte(q.Get("key"))}
		}
		_, err := t.PublishMessages(r.Context(), all)
		return err
	})
}

// messageHeaderPrefix is the prefix of HTTP headers that become headers of the message; in an /mpub, of every message.
const messageHeaderPrefix = "X-Penstock-Header-"

// putOfProducer stores the messages of a request with the numbers of a producer.
func (s *Service) putOfProducer(
	r *http.Request, q url.Values, name string, messages [][]byte, headers []node.Header, delay time.Duration,
	n *publish.Numbers,
) (any, error) {
	at, err := partitionParam(q, "INVALID_PARTITION")
	if err != nil {
		return nil, err
	}
	if key := q.Get("key"); key != "" {
		if slices.ContainsFunc(headers, func(h node.Header) bool { return string(h.Key) == message.KeyHeader }) {
			return nil, fmt.Errorf("%w: there is a key and a header %q, too", errs.ErrHeaders, message.KeyHeader)
		}
		headers = append(headers, node.Header{Key: []byte(message.KeyHeader), Value: []byte(key)})
	}
	reply, err := s.put(r, name, func(t *node.Topic) error {
		_, err := s.putNumbered(r, t, at, &node.Put{Messages: messages, Defer: delay}, headers, n)
		return err
	})
	return reply, numberedFailure(err)
}

// messageHeaders returns the message headers in a request, sorted by name. Names are in lower case, since HTTP does not
// preserve case. The headers of a producer need no prefix.
func messageHeaders(r *http.Request) (headers []node.Header) {
	headers = requestNumbers(r, nil)
	for name, values := range r.Header {
		if name, ok := strings.CutPrefix(name, messageHeaderPrefix); ok {
			for _, v := range values {
				headers = append(headers, node.Header{Key: []byte(strings.ToLower(name)), Value: []byte(v)})
			}
		}
	}
	slices.SortStableFunc(headers, func(a, b node.Header) int { return bytes.Compare(a.Key, b.Key) })
	return headers
}

// binaryParam reports whether an /mpub body is binary. As in nsqd, a missing parameter, "false" and "0" mean text, and
// any other value means binary.
func binaryParam(q url.Values) bool {
	v := strings.ToLower(q.Get("binary"))
	return q.Has("binary") && v != "false" && v != "0"
}

// splitLines splits a text body at LF and drops empty lines.
func splitLines(body []byte, most int) ([][]byte, error) {
	var out [][]byte
	for line := range bytes.SplitSeq(body, []byte{'\n'}) {
		switch {
		case len(line) > most:
			return nil, overSize("MSG_TOO_BIG", len(line), most)
		case len(line) > 0:
			out = append(out, line)
		}
	}
	return out, nil
}

// topicFor finds or creates the topic of a request that publishes.
func (s *Service) topicFor(r *http.Request, name string) (*node.Topic, error) {
	t, created, err := s.opts.Lookups.Topic(r.Context(), name, func() (string, error) { return s.MakerOf(r) })
	if err == nil && created {
		who, _ := s.permit(web.Publish, r, url.Values{"topic": {name}}) // it was permitted a moment ago
		s.audit.Changed(web.EntryOf(who, r, "create", "topic="+name))
	}
	return t, err
}

// put finds or creates the topic, and publishes to it.
func (s *Service) put(r *http.Request, name string, do func(*node.Topic) error) (any, error) {
	ctx := r.Context()
	var began time.Time
	if publish.Sampled() {
		began = time.Now()
	}
	err := publish.RetryDeleted(ctx, func() error {
		t, err := s.topicFor(r, name)
		if err != nil {
			return err
		}
		return do(t)
	})
	if err != nil {
		s.opts.Publishes.Refuse(err)
		return nil, err
	}
	if !began.IsZero() {
		s.opts.Publishes.HTTP.Observe(time.Since(began))
	}
	return "OK", nil
}
