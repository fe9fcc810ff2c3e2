package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"penstock/batch"
	"penstock/internal/jsonbody"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/fold"
	"penstock/internal/server/web"
	"penstock/segment"
)

// maxSettingsBytes bounds the body of a request that sets a channel's or a topic's settings. Valid bodies are far
// shorter.
const maxSettingsBytes = 64 << 10

// channelRoutes returns our own routes about channels, which nsqd does not have. POST changes, and requires the same
// permission as /channel/pause. GET only looks, and requires View; but peeking shows the bodies of messages, which View
// does not cover.
func (s *Service) channelRoutes() map[string]web.Route {
	return map[string]web.Route{
		"/channel/settings": web.On("GET,POST", s.onChannel(s.serveChannelSettings), web.Admin).ToLook(web.View),
		"/channel/seek":     web.On("POST", s.onChannel(serveChannelSeek), web.Admin),
		"/channel/skip":     web.On("POST", s.onChannel(skipChannel(true)), web.Admin),
		"/channel/unskip":   web.On("POST", s.onChannel(skipChannel(false)), web.Admin),
		"/channel/peek":     web.On("GET", s.onChannel(serveChannelPeek), web.Admin),
		"/channel/pending":  web.On("GET", s.onChannel(listChannel((*node.Channel).Pending)), web.View),
		"/channel/deferred": web.On("GET", s.onChannel(listChannel((*node.Channel).DeferredMessages)), web.View),
		"/channel/fork":     web.On("POST", s.onChannel(s.serveChannelFork), web.Admin),
		"/channel/redrive":  web.On("POST", s.onChannel(s.serveChannelRedrive), web.Admin),
		// A path of its own: a node of the version before would not look at id and filter, and publish all.
		"/channel/redrive/chosen": web.On("POST", s.onChannel(s.serveChannelRedriveChosen), web.Admin),
		"/channel/finish":         web.On("POST", s.onChannel(serveChannelFinish), web.Admin),
	}
}

// channelEndpoint serves a request about an existing channel.
type channelEndpoint func(c *node.Channel, r *http.Request, q url.Values) (any, error)

func (s *Service) onChannel(do channelEndpoint) web.Endpoint {
	return func(r *http.Request, q url.Values) (any, error) {
		t, name, err := s.channelArgs(q)
		if err != nil {
			return nil, err
		}
		c, err := s.findChannel(t, name)
		if err != nil {
			return nil, err
		}
		return do(c, r, q)
	}
}

// findChannel returns the channel for an operation. In a cluster, a node that leads no partition of the topic does not
// know whether the channel exists; the leaders say so when they answer the operation.
func (s *Service) findChannel(t *node.Topic, name string) (*node.Channel, error) {
	if c, ok := t.LookupChannel(name); ok {
		return c, nil
	}
	if s.engine.Snapshot() != nil {
		return t.ChannelElsewhere(name), nil
	}
	return nil, web.Fail(404, "CHANNEL_NOT_FOUND")
}

// badArgument returns an error that says in one sentence what is wrong with a parameter. It is used only before
// anything was changed.
func badArgument(format string, args ...any) error {
	return web.Fail(400, fmt.Sprintf(format, args...))
}

func (s *Service) serveChannelSettings(c *node.Channel, r *http.Request, _ url.Values) (any, error) {
	if r.Method == http.MethodGet {
		return c.ReadSettings(r.Context())
	}
	var set fold.ChannelSettings
	if err := s.readSettings(r, &set); err != nil {
		return nil, err
	}
	if err := s.mayFeed(r, c, &set); err != nil {
		return nil, err
	}
	return c.Configure(r.Context(), set)
}

// mayFeed reports whether the client may let the channel send its dead letters where the settings say. Otherwise rights
// on one topic would be rights to publish to every other one, and to create it. The channel's own dead-letter topic,
// which is named after its topic, belongs to the topic. O7
func (s *Service) mayFeed(r *http.Request, c *node.Channel, set *fold.ChannelSettings) error {
	own := c.Topic().Name()
	if set.DeadLetter == "" || set.DeadLetter == own+fold.DeadLetterSuffix {
		return nil
	}
	_, err := s.permit(web.Feed, r, url.Values{"topic": {set.DeadLetter}})
	return err
}

// readSettings decodes all settings from a request's body. An unknown name is refused, because ignoring it would set
// something other than what the client asked for.
func (s *Service) readSettings(r *http.Request, into any) error {
	body, done, err := s.readBody(r, maxSettingsBytes,
		"the settings are larger than any that are valid; nothing was changed")
	if err != nil {
		return err
	}
	defer done()
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	wrong := ""
	if err := d.Decode(into); err != nil {
		wrong = jsonbody.Explain(err)
	} else if _, more := d.Token(); !errors.Is(more, io.EOF) {
		wrong = "there is more behind them"
	}
	if wrong != "" {
		return badArgument("the body is not the JSON of settings, as GET gives it (%s); nothing was changed", wrong)
	}
	return nil
}

func serveChannelSeek(c *node.Channel, r *http.Request, q url.Values) (any, error) {
	to, err := seekTo(q.Get("to"), q.Get("value"))
	if err != nil {
		return nil, err
	}
	return nil, c.Seek(r.Context(), to)
}

// serveChannelFork makes the channel that the query names as new, with the settings of the channel. It starts at the
// place that the query names as at, as from of /channel/create does, or where the channel stands. The client must be
// permitted to create the new channel, and to let it send its dead letters where the settings say.
func (s *Service) serveChannelFork(c *node.Channel, r *http.Request, q url.Values) (any, error) {
	name := q.Get("new")
	if name == "" {
		return nil, web.Fail(400, "MISSING_ARG_NEW")
	}
	if _, err := s.permit(web.Admin, r, url.Values{"topic": {c.Topic().Name()}, "channel": {name}}); err != nil {
		return nil, err
	}
	var at *node.SeekTo
	if q.Has("at") {
		to, err := startAt("at", q.Get("at"))
		if err != nil {
			return nil, err
		}
		at = &to
	}
	set, err := c.ReadSettings(r.Context())
	if err == nil {
		err = s.mayFeed(r, c, &set)
	}
	if err == nil {
		_, err = c.Fork(r.Context(), name, at)
	}
	return nil, err
}

// seekTo parses the place that the parameters name.
func seekTo(kind, value string) (node.SeekTo, error) {
	to := node.SeekTo{Kind: node.SeekKind(kind)}
	var err error
	switch to.Kind {
	case node.SeekBeginning, node.SeekEnd:
		if value != "" {
			return to, badArgument("to=%s takes no value; nothing was changed", kind)
		}
	case node.SeekID:
		if to.ID, err = batch.ParseID([]byte(value)); err != nil {
			return to, badArgument("%q is not a message id, which has 16 lower-case hex digits; nothing was changed", value)
		}
	case node.SeekTime:
		if to.Time, err = parseTime(value); err != nil {
			return to, badArgument(
				"%q is not a time: say it as 2026-01-31T12:00:00Z or in ns since 1970; nothing was changed", value)
		}
	case node.SeekCount:
		if to.Count, err = strconv.ParseInt(value, 10, 64); err != nil {
			return to, badArgument(
				"%q is not a number of messages: forward is above 0, back is below; nothing was changed", value)
		}
	default:
		return to, badArgument(
			"to=%q is not a place: a channel can go to beginning, end, id, time or count; nothing was changed", kind)
	}
	return to, nil
}

// startAt parses the place where a new channel starts, from a parameter of this name.
func startAt(param, from string) (to node.SeekTo, err error) {
	switch from {
	case "oldest":
		return node.SeekTo{Kind: node.SeekBeginning}, nil
	case "newest":
		return node.SeekTo{Kind: node.SeekEnd}, nil
	}
	if to.ID, err = batch.ParseID([]byte(from)); err == nil {
		to.Kind = node.SeekID
		return to, nil
	}
	if to.Time, err = parseTime(from); err == nil {
		to.Kind = node.SeekTime
		return to, nil
	}
	return to, badArgument("%s=%q is not a place: a channel can start at oldest, newest, a message id (16 lower-case "+
		"hex digits) or a time (2026-01-31T12:00:00Z, or ns since 1970); nothing was made", param, from)
}

func parseTime(s string) (time.Time, error) {
	if ns, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Unix(0, ns), nil
	}
	return time.Parse(time.RFC3339Nano, s)
}

func skipChannel(on bool) channelEndpoint {
	return func(c *node.Channel, r *http.Request, _ url.Values) (any, error) {
		return nil, c.Skip(r.Context(), on)
	}
}

func serveChannelPeek(c *node.Channel, r *http.Request, q url.Values) (any, error) {
	o, err := peekOptions(q)
	if err != nil {
		return nil, err
	}
	all, err := c.Peek(r.Context(), o)
	return peekList(all), err
}

// peekOptions parses partition, from and count. from is a message id, or the number of a message in the partition.
func peekOptions(q url.Values) (o node.PeekOptions, err error) {
	o.Partition = -1
	if q.Has("partition") {
		o.Partition, err = strconv.Atoi(q.Get("partition"))
		if err != nil || o.Partition < -1 || o.Partition > batch.MaxPartition {
			return o, badArgument("%q is not the number of a partition: they count from 0", q.Get("partition"))
		}
	}
	if o.Count, err = listCount(q); err != nil || q.Get("from") == "" {
		return o, err
	}
	from := q.Get("from")
	if id, err := batch.ParseID([]byte(from)); err == nil {
		if o.Partition >= 0 && id.Partition() != uint32(o.Partition) {
			return o, badArgument("message %s is in partition %d, not in %d", from, id.Partition(), o.Partition)
		}
		o.From, o.Partition = id, int(id.Partition())
		return o, nil
	}
	number, err := strconv.ParseUint(from, 10, 64)
	switch {
	case err != nil || number > uint64(segment.MaxMsgID):
		return o, badArgument(
			"from=%q is neither a message id, which has 16 lower-case hex digits, nor a message's number", from)
	case o.Partition < 0:
		return o, badArgument("messages are numbered within their partition: say which one beside from=%s", from)
	}
	o.From = batch.MakeID(uint32(o.Partition), segment.MsgID(number))
	return o, nil
}

// listCount returns the parameter count, or 0 if it is absent.
func listCount(q url.Values) (int, error) {
	if !q.Has("count") {
		return 0, nil
	}
	n, err := strconv.Atoi(q.Get("count"))
	if err != nil || n < 1 || n > channel.MaxListCount {
		return 0, badArgument("count=%q is not a number from 1 to %d", q.Get("count"), channel.MaxListCount)
	}
	return n, nil
}

// listChannel serves a list of messages: those in flight, or the deferred ones.
func listChannel(list func(*node.Channel, context.Context, int) ([]node.PendingMessage, error)) channelEndpoint {
	return func(c *node.Channel, r *http.Request, q url.Values) (any, error) {
		n, err := listCount(q)
		if err != nil {
			return nil, err
		}
		all, err := list(c, r.Context(), n)
		return waitingList(all), err
	}
}

func (s *Service) serveChannelRedrive(c *node.Channel, r *http.Request, q url.Values) (any, error) {
	if q.Has("id") || q.Has("filter") {
		return nil, web.Fail(400, "id and filter choose among the dead letters: POST them to /channel/redrive/chosen")
	}
	return s.redrive(c, r, q, nil, nil)
}

// serveChannelRedriveChosen publishes the dead letters again that id or filter choose.
func (s *Service) serveChannelRedriveChosen(c *node.Channel, r *http.Request, q url.Values) (any, error) {
	ids, err := messageIDs(q["id"])
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 && !q.Has("filter") {
		return nil, web.Fail(400, "MISSING_ARG_ID")
	}
	var f fold.Filter
	for _, text := range q["filter"] {
		f.Rules = append(f.Rules, fold.ParseRule(text))
	}
	return s.redrive(c, r, q, ids, &f)
}

// redrive publishes a channel's dead letters again: those of the messages ids, if there are some; otherwise those that
// the filter accepts; nil: all.
func (s *Service) redrive(c *node.Channel, r *http.Request, q url.Values, ids []node.ID, f *fold.Filter) (any, error) {
	n, err := listCount(q)
	if err != nil {
		return nil, err
	}
	set, err := c.ReadSettings(r.Context())
	if err != nil {
		return nil, err
	}
	if err := s.mayFeed(r, c, &set); err != nil {
		return nil, err // the dead letters are taken out of that topic
	}
	if n == 0 {
		n = channel.MaxListCount
	}
	var moved int
	switch {
	case len(ids) > 0:
		moved, err = c.RedriveOnly(r.Context(), ids...)
	case f != nil:
		moved, err = c.RedriveWanted(r.Context(), n, *f)
	default:
		moved, err = c.Redrive(r.Context(), n)
	}
	if err != nil && moved > 0 {
		return nil, web.Fail(web.AsError(err).Status,
			fmt.Sprintf("%v; %d messages were moved before", err, moved))
	}
	return Redriven{moved}, err
}
