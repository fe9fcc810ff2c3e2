package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"penstock/cluster/admin"
	"penstock/cmd/engine/client"
	"penstock/nsq"
)

// nodeStats is the part of a node's /stats that is shown.
type nodeStats struct {
	Topics []topicNumbers `json:"topics"`
}

type topicNumbers struct {
	Name         string           `json:"topic_name"`
	Depth        int64            `json:"depth"`
	MessageCount uint64           `json:"message_count"`
	MessageBytes uint64           `json:"message_bytes"`
	Paused       bool             `json:"paused"`
	Channels     []channelNumbers `json:"channels,omitempty"`
}

type channelNumbers struct {
	Topic         string `json:"topic_name,omitempty"`
	Name          string `json:"channel_name"`
	Depth         int64  `json:"depth"`
	InFlightCount int    `json:"in_flight_count"`
	DeferredCount int    `json:"deferred_count"`
	MessageCount  uint64 `json:"message_count"`
	RequeueCount  uint64 `json:"requeue_count"`
	TimeoutCount  uint64 `json:"timeout_count"`
	ClientCount   int    `json:"client_count"`
	Paused        bool   `json:"paused"`
}

// topics returns the numbers of all topics, or of one topic, which must exist. In a cluster it adds up the numbers of
// all nodes, because every node counts only what it leads.
func (o *operator) topics(ctx context.Context, topic ...string) ([]topicNumbers, error) {
	nodes, err := o.members(ctx)
	if err != nil {
		return nil, err
	}
	sum := map[string]*topicNumbers{}
	for _, n := range nodes {
		all, err := numbersOf(ctx, n, topic...)
		if err != nil {
			return nil, err
		}
		for i := range all {
			if had := sum[all[i].Name]; had != nil {
				had.add(&all[i])
			} else {
				sum[all[i].Name] = &all[i]
			}
		}
	}
	if len(topic) > 0 && len(sum) == 0 {
		return nil, fmt.Errorf("there is no topic %s (node at %s)", topic[0], o.client.Address)
	}
	out := make([]topicNumbers, 0, len(sum))
	for _, name := range slices.Sorted(maps.Keys(sum)) {
		out = append(out, *sum[name])
	}
	return out, nil
}

// members returns a client for each live node of the cluster, or for the one node if there is no cluster.
func (o *operator) members(ctx context.Context) ([]*client.Client, error) {
	var st admin.Status
	switch err := o.client.Get(ctx, "/cluster/status", url.Values{}, &st); {
	case errors.Is(err, client.ErrNoSuchRequest):
		return []*client.Client{&o.client}, nil // the node is in no cluster
	case err != nil:
		return nil, err
	}
	var out []*client.Client
	for i := range st.Nodes {
		n := &st.Nodes[i]
		if !n.Live || n.HTTP == "" && n.HTTPS == "" {
			continue
		}
		c, err := o.client.At(n.HTTP, n.HTTPS)
		if err != nil {
			return nil, fmt.Errorf("node %s cannot be asked: %w", n.Name, err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		out = append(out, &o.client)
	}
	return out, nil
}

// add adds another node's numbers of the same topic.
func (n *topicNumbers) add(m *topicNumbers) {
	n.Depth += m.Depth
	n.MessageCount += m.MessageCount
	n.MessageBytes += m.MessageBytes
	n.Paused = n.Paused || m.Paused
	for _, c := range m.Channels {
		i := slices.IndexFunc(n.Channels, func(had channelNumbers) bool { return had.Name == c.Name })
		if i < 0 {
			n.Channels = append(n.Channels, c)
			continue
		}
		had := &n.Channels[i]
		had.Depth += c.Depth
		had.InFlightCount += c.InFlightCount
		had.DeferredCount += c.DeferredCount
		had.MessageCount += c.MessageCount
		had.RequeueCount += c.RequeueCount
		had.TimeoutCount += c.TimeoutCount
		had.ClientCount += c.ClientCount
		had.Paused = had.Paused || c.Paused
	}
}

// numbersOf returns the numbers of one node.
func numbersOf(ctx context.Context, c *client.Client, topic ...string) ([]topicNumbers, error) {
	q := url.Values{}
	if len(topic) > 0 {
		q.Set("topic", topic[0])
	}
	for name, v := range map[string]string{"format": "json", "include_clients": "false", "include_mem": "false"} {
		q.Set(name, v)
	}
	var st nodeStats
	if err := c.Get(ctx, "/stats", q, &st); err != nil {
		return nil, err
	}
	return st.Topics, nil
}

// channelsOf returns all channels, each with the name of its topic.
func channelsOf(all []topicNumbers) []channelNumbers {
	out := []channelNumbers{}
	for i := range all {
		for _, c := range all[i].Channels {
			c.Topic = all[i].Name
			out = append(out, c)
		}
	}
	return out
}

func printTopicNumbers(w io.Writer, all []topicNumbers) error {
	t := table(w)
	fmt.Fprintln(t, "TOPIC\tCHANNELS\tDEPTH\tMESSAGES\tBYTES\tSTATE")
	for i := range all {
		n := &all[i]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\n", n.Name, len(n.Channels), n.Depth, n.MessageCount, n.MessageBytes,
			pausedOr(n.Paused))
	}
	return t.Flush()
}

func printChannels(w io.Writer, all []topicNumbers) error {
	t := table(w)
	fmt.Fprintln(t, "TOPIC\tCHANNEL\tDEPTH\tIN FLIGHT\tDEFERRED\tMESSAGES\tREQUEUED\tTIMED OUT\tCONSUMERS\tSTATE")
	for _, n := range channelsOf(all) {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", n.Topic, n.Name, n.Depth, n.InFlightCount, n.DeferredCount,
			n.MessageCount, n.RequeueCount, n.TimeoutCount, n.ClientCount, pausedOr(n.Paused))
	}
	return t.Flush()
}

func pausedOr(paused bool) string {
	if paused {
		return "paused"
	}
	return "ok"
}

// maxShownRunes bounds the part of a body or a header's value that a table shows.
const maxShownRunes = 80

// shown returns a body or a header's value in the form for a table. Binary data and unprintable text are quoted like a
// Go string.
func shown(text *string, raw []byte) string {
	s := ""
	switch {
	case text == nil:
		s = strconv.QuoteToASCII(string(raw))
	case strings.ContainsFunc(*text, func(r rune) bool { return !unicode.IsPrint(r) }):
		s = strconv.Quote(*text)
	default:
		s = *text
	}
	if utf8.RuneCountInString(s) > maxShownRunes {
		s = string([]rune(s)[:maxShownRunes]) + "…"
	}
	return s
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func printPeeked(w io.Writer, list *nsq.PeekList) error {
	t := table(w)
	fmt.Fprintln(t, "ID\tPARTITION\tNUMBER\tPUBLISHED\tDUE\tBYTES\tHEADERS\tBODY")
	for i := range list.Messages {
		m := &list.Messages[i]
		var headers []string
		for _, h := range m.Headers {
			headers = append(headers, h.Name+"="+shown(h.Value, h.ValueBase64))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%d\t%s\t%s\n", m.ID, m.Partition, m.Number, stamp(m.Timestamp), stamp(m.Due),
			m.BodyBytes,
			dash(strings.Join(headers, " ")), shown(m.Body, m.BodyBase64))
	}
	return t.Flush()
}

func printWaiting(w io.Writer, list *nsq.WaitingList, when string) error {
	t := table(w)
	if when == "SINCE" {
		fmt.Fprintln(t, "ID\tPARTITION\tNUMBER\tSINCE\tTIMES OUT\tATTEMPTS\tCONSUMER")
	} else {
		fmt.Fprintln(t, "ID\tPARTITION\tNUMBER\tDUE\tATTEMPTS")
	}
	for i := range list.Messages {
		m := &list.Messages[i]
		if when == "SINCE" {
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%d\t%s\n", m.ID, m.Partition, m.Number, stamp(m.Since), stamp(m.Due), m.Attempts,
				dash(m.Client))
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%d\n", m.ID, m.Partition, m.Number, stamp(m.Due), m.Attempts)
	}
	return t.Flush()
}
